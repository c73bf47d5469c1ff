package firmware

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fleetd/fleet"
)

const (
	fitPage       = 1000
	fitSampleSize = 5
)

// A FitQuery selects the image or release whose fit is checked.
type FitQuery struct {
	Release uuid.UUID // or
	Image   string    // SHA-256
	Query   string
	Options FitOptions
}

// A FitReport counts which devices fit, which do not, and why.
type FitReport struct {
	Matched, Fit int
	Sample       []fleet.DeviceID // of the devices that fit
	// RolledBack counts devices that would fit too, but installed this build before and rolled
	// it back. A campaign does not exclude them: it tries them again.
	RolledBack       int
	RolledBackSample []fleet.DeviceID
	Misfits          []Misfits // see [SortMisfits]
}

// Misfits are the devices of one board that do not fit for one reason. If the reason names the
// device's chip, each chip has its own Misfits.
type Misfits struct {
	Reason SkipReason
	Board  string       // as the devices report it; may be empty
	Chip   string       // if the reason names it; else ""
	Detail fleet.Reason // of one of the devices: a code of [Reasons], or of [Options.Unavailable]
	Count  int
	Sample []fleet.DeviceID
}

// A LeftOut counts devices that do not fit, by reason and board. The zero LeftOut is
// ready for use.
type LeftOut struct{ groups map[leftOutKey]*Misfits }

type leftOutKey struct {
	reason      SkipReason
	board, chip string
}

// chipIn returns the device's chip that the detail names; "" if it names no chip.
func chipIn(detail fleet.Reason) string {
	name := map[string]string{FitRelease: "chip", FitChip: "other"}[detail.Code]
	chip, _ := detail.Params[name].(string)
	return chip
}

// Add counts a device.
func (l *LeftOut) Add(d fleet.DeviceID, board string, reason SkipReason, detail fleet.Reason) {
	if l.groups == nil {
		l.groups = map[leftOutKey]*Misfits{}
	}
	key := leftOutKey{reason, board, chipIn(detail)}
	m := l.groups[key]
	if m == nil {
		m = &Misfits{Reason: reason, Board: board, Chip: key.chip, Detail: detail}
		l.groups[key] = m
	}
	if m.Count++; len(m.Sample) < fitSampleSize {
		m.Sample = append(m.Sample, d)
	}
}

// List returns the groups, sorted.
func (l *LeftOut) List() []Misfits {
	all := make([]Misfits, 0, len(l.groups))
	for _, m := range l.groups {
		all = append(all, *m)
	}
	SortMisfits(all)
	return all
}

// SortMisfits sorts by the number of devices: first by that of the reason, then by that of
// the board.
func SortMisfits(all []Misfits) {
	devices := map[SkipReason]int{}
	for _, m := range all {
		devices[m.Reason] += m.Count
	}
	slices.SortFunc(all, func(a, b Misfits) int {
		return cmp.Or(cmp.Compare(devices[b.Reason], devices[a.Reason]),
			cmp.Compare(slices.Index(SkipReasons, a.Reason), slices.Index(SkipReasons, b.Reason)),
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Board, b.Board), cmp.Compare(a.Chip, b.Chip))
	})
}

// Fit reports which devices an image or release fits. It changes nothing.
func (f *Service) Fit(ctx context.Context, q FitQuery) (FitReport, error) {
	j, err := f.judge(ctx, q)
	if err != nil {
		return FitReport{}, err
	}
	query, err := fleet.ParseQuery(q.Query)
	if err != nil {
		return FitReport{}, err
	}
	ids, err := f.o.Devices.DeviceIDs(ctx, query)
	if err != nil {
		return FitReport{}, err
	}
	if j.tool, err = f.withTool(ctx, q); err != nil {
		return FitReport{}, err
	}
	for page := range slices.Chunk(ids, fitPage) {
		if err := j.add(ctx, page); err != nil {
			return FitReport{}, err
		}
	}
	j.report.Misfits = j.leftOut.List()
	return j.report, nil
}

// A fitJudge judges devices one by one.
type fitJudge struct {
	f       *Service
	images  []Image // a device may get one of them
	fits    func(fleet.Device) (Image, SkipReason, fleet.Reason)
	tool    map[fleet.DeviceID]bool // devices that accept a push; nil if that does not matter
	report  FitReport
	leftOut LeftOut
}

func (f *Service) judge(ctx context.Context, q FitQuery) (*fitJudge, error) {
	now, o := f.o.Now(), q.Options
	switch q.Options.Mode {
	case "", ModeAuto, ModePush, ModePull:
	default:
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_mode", "value", string(q.Options.Mode))
	}
	if (q.Image == "") == (q.Release == uuid.Nil) {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_fit")
	}
	if q.Image != "" {
		img, err := f.Image(ctx, strings.ToLower(q.Image))
		if err == nil {
			o.Limits, err = f.Limits(ctx, []Image{img})
		}
		return &fitJudge{f: f, images: []Image{img}, fits: func(d fleet.Device) (Image, SkipReason, fleet.Reason) {
			reason, detail := FitImage(d, img, o, now)
			return img, reason, detail
		}}, err
	}
	r, err := f.Release(ctx, q.Release)
	if err == nil {
		o.Limits, err = f.Limits(ctx, r.Images)
	}
	return &fitJudge{f: f, images: r.Images, fits: func(d fleet.Device) (Image, SkipReason, fleet.Reason) {
		return FitDevice(d, r, o, now)
	}}, err
}

// withTool returns which devices of the query offer the tool that a push requires. The store
// has this list; a device record only names its inventory.
func (f *Service) withTool(ctx context.Context, q FitQuery) (map[fleet.DeviceID]bool, error) {
	if q.Options.Mode != ModePush {
		return nil, nil
	}
	query, err := fleet.ParseQuery(q.Query)
	if err != nil {
		return nil, err
	}
	withTool, err := fleet.ParseQuery("tool:" + fleet.ToolUpgradeFirmware)
	if err != nil {
		return nil, err
	}
	ids, err := f.o.Devices.DeviceIDs(ctx, query.And(withTool))
	offers := make(map[fleet.DeviceID]bool, len(ids))
	for _, id := range ids {
		offers[id] = true
	}
	return offers, err
}

// add judges a page of devices.
func (j *fitJudge) add(ctx context.Context, page []fleet.DeviceID) error {
	devices, err := j.f.o.Devices.DevicesByID(ctx, page)
	if err != nil {
		return err
	}
	slices.SortFunc(devices, func(a, b fleet.Device) int { return strings.Compare(string(a.ID), string(b.ID)) })
	var unavailable map[fleet.DeviceID]Misfits
	if j.f.o.Unavailable != nil {
		if unavailable, err = j.f.o.Unavailable(ctx, page, j.f.o.Now()); err != nil {
			return err
		}
	}
	var rolledBack map[fleet.DeviceID][]string
	if j.f.o.RolledBack != nil {
		if rolledBack, err = j.f.o.RolledBack(ctx, page, Builds(j.images)); err != nil {
			return err
		}
	}
	for _, d := range devices {
		img, reason, detail := j.fits(d)
		if u, ok := unavailable[d.ID]; reason == SkipNone && ok {
			reason, detail = u.Reason, u.Detail
		}
		if reason == SkipNone && j.tool != nil && !j.tool[d.ID] {
			reason, detail = SkipNoTool, fleet.Because(FitNoTool, "tool", fleet.ToolUpgradeFirmware)
		}
		j.count(d, reason, detail, slices.Contains(rolledBack[d.ID], img.ELFSHA256))
	}
	return nil
}

// Builds returns the builds of images. An image without a build adds nothing.
func Builds(images []Image) []string {
	var all []string
	for _, img := range images {
		if img.ELFSHA256 != "" {
			all = append(all, img.ELFSHA256)
		}
	}
	return all
}

func (j *fitJudge) count(d fleet.Device, reason SkipReason, detail fleet.Reason, rolledBack bool) {
	r := &j.report
	r.Matched++
	if reason != SkipNone {
		j.leftOut.Add(d.ID, d.Board, reason, detail)
		return
	}
	n, sample := &r.Fit, &r.Sample
	if rolledBack {
		n, sample = &r.RolledBack, &r.RolledBackSample
	}
	if *n++; len(*sample) < fitSampleSize {
		*sample = append(*sample, d.ID)
	}
}
