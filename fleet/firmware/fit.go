package firmware

import (
	"context"
	"fleetd/fleet"
	"slices"
	"strings"

	"github.com/google/uuid"
)

const (
	fitPage       = 1000
	fitSampleSize = 5
)

// A FitQuery asks which devices an image or release fits.
type FitQuery struct {
	Release uuid.UUID // or
	Image   string    // SHA-256
	Query   string
	Options FitOptions
}

// A FitReport says which devices fit, which do not, and why.
type FitReport struct {
	Matched, Fit int
	Sample       []fleet.DeviceID // of those that fit
	Misfits      []Misfits        // most first
}

// Misfits are the devices that do not fit for one reason.
type Misfits struct {
	Reason SkipReason
	Detail fleet.Reason // of one of them: a code of [Reasons], or of whoever keeps the device
	Count  int
	Sample []fleet.DeviceID
}

// Fit says which devices an image or release fits. It changes nothing.
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
	var report FitReport
	for page := range slices.Chunk(ids, fitPage) {
		if err := j.add(ctx, &report, page); err != nil {
			return FitReport{}, err
		}
	}
	slices.SortStableFunc(report.Misfits, func(a, b Misfits) int { return b.Count - a.Count })
	return report, nil
}

// A fitJudge judges one device after the other.
type fitJudge struct {
	f    *Service
	fits func(fleet.Device) (SkipReason, fleet.Reason)
	tool map[fleet.DeviceID]bool // those that can be pushed to; nil if that does not matter
}

func (f *Service) judge(ctx context.Context, q FitQuery) (*fitJudge, error) {
	now, o := f.o.Now(), q.Options
	switch q.Options.Mode {
	case "", ModeAuto, ModePush, ModePull:
	default:
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_mode", "value", fleet.CleanText(string(q.Options.Mode), 20))
	}
	if (q.Image == "") == (q.Release == uuid.Nil) {
		return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_fit")
	}
	if q.Image != "" {
		img, err := f.Image(ctx, strings.ToLower(q.Image))
		if err == nil {
			o.Limits, err = f.Limits(ctx, []Image{img})
		}
		return &fitJudge{f: f, fits: func(d fleet.Device) (SkipReason, fleet.Reason) { return FitImage(d, img, o, now) }}, err
	}
	r, err := f.Release(ctx, q.Release)
	if err == nil {
		o.Limits, err = f.Limits(ctx, r.Images)
	}
	return &fitJudge{f: f, fits: func(d fleet.Device) (SkipReason, fleet.Reason) {
		_, reason, detail := FitDevice(d, r, o, now)
		return reason, detail
	}}, err
}

// withTool returns which devices of the query offer the tool that a push
// needs. The store knows; a device itself only names its inventory.
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
func (j *fitJudge) add(ctx context.Context, report *FitReport, page []fleet.DeviceID) error {
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
	for _, d := range devices {
		reason, detail := j.fits(d)
		if u, ok := unavailable[d.ID]; reason == SkipNone && ok {
			reason, detail = u.Reason, u.Detail
		}
		if reason == SkipNone && j.tool != nil && !j.tool[d.ID] {
			reason, detail = SkipNoTool, fleet.Because(FitNoTool, "tool", fleet.ToolUpgradeFirmware)
		}
		report.count(d.ID, reason, detail)
	}
	return nil
}

func (r *FitReport) count(id fleet.DeviceID, reason SkipReason, detail fleet.Reason) {
	r.Matched++
	if reason == SkipNone {
		if r.Fit++; len(r.Sample) < fitSampleSize {
			r.Sample = append(r.Sample, id)
		}
		return
	}
	i := slices.IndexFunc(r.Misfits, func(m Misfits) bool { return m.Reason == reason })
	if i < 0 {
		i = len(r.Misfits)
		r.Misfits = append(r.Misfits, Misfits{Reason: reason, Detail: detail})
	}
	m := &r.Misfits[i]
	if m.Count++; len(m.Sample) < fitSampleSize {
		m.Sample = append(m.Sample, id)
	}
}
