package ui

import (
	"context"
	"net/url"
	"time"

	"fleetd/fleet/call"
)

// stack draws the calls by the hour.
func (v CallsOfDay) stack(ctx context.Context) stackChart {
	from := v.To.Add(-24 * time.Hour).Truncate(time.Hour)
	c := stackChart{id: "calls-of-day", title: t(ctx, "device.calls_day"), span: timeSpan{from, v.To}, step: time.Hour,
		strip: true, layers: []stackLayer{{class: "fill-good", label: t(ctx, "chart.succeeded")},
			{class: "fill-bad", label: t(ctx, "chart.failed")}}}
	known := make(map[int64]call.Bucket, len(v.Buckets))
	for _, b := range v.Buckets {
		known[b.At.Unix()] = b
	}
	for at := from; at.Before(v.To); at = at.Add(time.Hour) {
		b := known[at.Unix()]
		c.times = append(c.times, at)
		c.layers[0].counts = append(c.layers[0].counts, b.Succeeded)
		c.layers[1].counts = append(c.layers[1].counts, b.Failed)
	}
	return c
}

// text returns the number of calls, and how many of them failed.
func (v CallsOfDay) text(ctx context.Context) string {
	all, failed := 0, 0
	for _, b := range v.Buckets {
		all += b.Succeeded + b.Failed
		failed += b.Failed
	}
	if failed > 0 {
		return t(ctx, "device.calls_failed", "n", all, "failed", failed)
	}
	return num(ctx, all)
}

// url returns the list of these calls.
func (v CallsOfDay) url(ctx context.Context) string {
	return PathCalls + "?" + url.Values{"device": {string(v.Device)},
		"since": {v.To.Add(-24 * time.Hour).In(page(ctx).Zone).Format(localMinute)}}.Encode()
}
