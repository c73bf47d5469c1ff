// Package compare finds what devices on which something failed have in common, and the others have not: a board, the
// version before, weak reception, a network, a place.
//
// A [Store] counts how many devices of both sides have each value of a fact; [Rank] chooses the values that differ
// notably. A difference is no cause: it says where to look. The package has no goroutines and no locks.
package compare

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// A Fact is a property of devices that is compared.
type Fact string

const (
	Board     Fact = "board"
	Chip      Fact = "chip"
	Version   Fact = "version"   // that the device ran before
	Transport Fact = "transport" // that it connects by
	Signal    Fact = "signal"    // reception is below so many dBm
	Uptime    Fact = "uptime"    // it started fewer than so many seconds before
	Network   Fact = "network"   // address range: /24, or /48 of IPv6
	Place     Fact = "place"     // tag, or the beginning of one up to a slash
)

// Facts lists every fact.
var Facts = []Fact{Board, Chip, Version, Transport, Signal, Uptime, Network, Place}

// A Count is the number of devices with a value of a fact. Devices can have several values of a fact: a device with
// reception below -85 dBm has one below -75 dBm, too.
type Count struct {
	Fact         Fact
	Value        string
	Failed, Well int
}

// Number returns the bound of a band: dBm, or seconds; 0 of another fact.
func (c Count) Number() int {
	if c.Fact != Signal && c.Fact != Uptime {
		return 0
	}
	n, _ := strconv.Atoi(c.Value)
	return n
}

// Counts are all counts of a comparison.
type Counts struct {
	Failed, Well int            // devices of each side
	Known        map[Fact]Count // all devices that have a value of the fact; Value is empty
	Values       []Count
}

// A Difference is a value that is more frequent among the devices that failed.
type Difference struct {
	Count
	FailedOf, WellOf int // devices of each side that have a value of the fact
}

// FailedShare returns the share of the value among the devices that failed, WellShare that among the others.
func (d Difference) FailedShare() float64 { return share(d.Failed, d.FailedOf) }

// WellShare is documented at FailedShare.
func (d Difference) WellShare() float64 { return share(d.Well, d.WellOf) }

// gap is how much more frequent the value is among the devices that failed.
func (d Difference) gap() float64 { return d.FailedShare() - d.WellShare() }

// What a notable difference has.
const (
	Least    = 5   // devices that failed and have the value, and devices on which it went well
	leastGap = 0.2 // between the shares
	leastZ   = 2.6 // standard errors of the gap: about one of 200 gaps by chance is as large
	most     = 8
)

// Rank returns the values that differ notably, those with the largest gap first. Of values that contain each other,
// such as a room and its site, only the one with the largest gap is in it.
func Rank(c Counts) (all []Difference) {
	for _, v := range c.Values {
		known := c.Known[v.Fact]
		d := Difference{v, known.Failed, known.Well}
		if d.Failed >= Least && d.WellOf >= Least && d.gap() >= leastGap-1e-9 && d.z() >= leastZ {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(b.gap(), a.gap()), cmp.Compare(b.Failed, a.Failed),
			cmp.Compare(slices.Index(Facts, a.Fact), slices.Index(Facts, b.Fact)), cmp.Compare(a.Number(), b.Number()),
			cmp.Compare(a.Value, b.Value))
	})
	var kept []Difference
	for _, d := range all {
		if !slices.ContainsFunc(kept, d.overlaps) && len(kept) < most {
			kept = append(kept, d)
		}
	}
	return kept
}

// overlaps reports whether devices with one of the values have the other.
func (d Difference) overlaps(other Difference) bool {
	switch {
	case d.Fact != other.Fact:
		return false
	case d.Fact == Signal || d.Fact == Uptime:
		return true
	case d.Fact == Place:
		return strings.HasPrefix(d.Value, other.Value+"/") || strings.HasPrefix(other.Value, d.Value+"/")
	}
	return false
}

// z returns the gap in standard errors, as if both sides were samples of the same devices. A share of nothing or all
// would have no error, so half a device is added to each number.
func (d Difference) z() float64 {
	n, m := float64(d.FailedOf)+1, float64(d.WellOf)+1
	p, q := (float64(d.Failed)+0.5)/n, (float64(d.Well)+0.5)/m
	pooled := (float64(d.Failed+d.Well) + 1) / (n + m)
	return (p - q) / math.Sqrt(pooled*(1-pooled)*(1/n+1/m))
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// MaxSide is the largest number of devices of a side that are compared: of more, so many are chosen at random.
const MaxSide = 5000

// A Store counts devices. It returns [fleet.ErrNotFound] for what does not exist for the principal of the context.
type Store interface {
	// CampaignFacts compares the devices of a campaign that failed, or that are stuck, with those that were updated.
	CampaignFacts(ctx context.Context, campaign uuid.UUID) (Counts, error)
	// FanOutFacts compares the devices of a fan-out on which the call failed with those on which it succeeded.
	FanOutFacts(ctx context.Context, fanOut uuid.UUID) (Counts, error)
}

// A Result is a comparison.
type Result struct {
	Failed, Well int // devices that were compared
	Differences  []Difference
}

// A Service compares.
type Service struct{ store Store }

// New returns a service.
func New(store Store) *Service { return &Service{store} }

// Campaign compares the devices of a campaign.
func (s *Service) Campaign(ctx context.Context, id uuid.UUID) (Result, error) {
	c, err := s.store.CampaignFacts(ctx, id)
	return Result{c.Failed, c.Well, Rank(c)}, err
}

// FanOut compares the devices of a fan-out.
func (s *Service) FanOut(ctx context.Context, id uuid.UUID) (Result, error) {
	c, err := s.store.FanOutFacts(ctx, id)
	return Result{c.Failed, c.Well, Rank(c)}, err
}
