package ui

import (
	"context"
	"strings"
	"time"

	"fleetd/fleet/compare"
	"fleetd/fleet/place"
)

// A Comparison is what devices on which something failed have in common; empty without a notable difference.
type Comparison struct {
	compare.Result
	Well string // names the devices on which it went well: "updated" or "succeeded"
}

// differenceText returns the difference as text; the value is "" if it is part of the text.
func differenceText(ctx context.Context, d compare.Difference) (text, value string) {
	key := "compare.fact." + string(d.Fact)
	switch d.Fact {
	case compare.Signal:
		return t(ctx, key, "n", strings.Replace(d.Value, "-", "\u2212", 1)), ""
	case compare.Uptime:
		return t(ctx, key, "d", time.Duration(d.Number())*time.Second), ""
	}
	return t(ctx, key), d.Value
}

// differenceURL returns a page with the devices that have the value now; "" if no query selects them.
func differenceURL(d compare.Difference) string {
	switch d.Fact {
	case compare.Board, compare.Chip, compare.Transport:
		return QueryPath(Term(string(d.Fact), d.Value))
	case compare.Place:
		return PlacePath(place.Path(d.Value))
	}
	return ""
}

func (c Comparison) shares(ctx context.Context, d compare.Difference) (failed, well string) {
	return tenths(ctx, d.FailedShare()), tenths(ctx, d.WellShare())
}
