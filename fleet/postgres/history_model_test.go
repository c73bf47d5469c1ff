package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/history"
)

// A snapshot is all devices at a moment, as the store said then.
type snapshot struct {
	at      time.Time
	devices map[fleet.DeviceID]fleet.Device
}

// changeAtRandom changes devices, and takes a snapshot after each step.
func changeAtRandom(m *moments, steps int) (past []snapshot) {
	ctx, s, r := m.Context(), m.s, rand.New(rand.NewPCG(1, 2))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	var ids []fleet.DeviceID
	for _, d := range stock(m.T, s) {
		ids = append(ids, d.ID)
	}
	for step := range steps {
		id := ids[r.IntN(len(ids))]
		switch r.IntN(11) {
		case 0:
			check(m, s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Name: ptr(one(names...))}))
		case 1:
			check(m, s.UpdateDevice(ctx, admin, id, fleet.DevicePatch{Tags: &[]string{one(names...), one(names...)}}))
		case 2, 3:
			p := poll(id, now())
			p.Poll.Version, p.Poll.Board = one(versions...), one(boards...)
			p.Admission.Enrolment = fleet.Enrolment(one("enrolled", "waiting", "rejected"))
			check(m, s.SavePolls(ctx, []enrolment.PollRecord{p}))
		case 4:
			check(m, s.SetHold(ctx, admin, id, &fleet.Hold{Reason: one("r", "q"), By: admin, Since: now(),
				Until: ptr(now().Add(time.Duration(r.IntN(40)) * time.Millisecond))}))
		case 5:
			check(m, s.SetHold(ctx, admin, id, nil))
		case 6:
			_, err := m.db.Exec(ctx, `UPDATE devices SET retired_at = CASE WHEN retired_at IS NULL THEN now() END WHERE id = $1`, id)
			check(m, err)
		case 7, 8:
			check(m, s.SavePresence(ctx, []fleet.PresenceChange{{Device: id, Since: now(), LastSeen: now(),
				Presence: fleet.Presence(one("online", "offline", "unresponsive"))}}))
		case 9:
			inv := one("inv1", "inv2")
			check(m, s.SaveListing(ctx, listing(id, inv, offered[inv]...)))
		case 10:
			if step%2 == 0 {
				check(m, s.FrameFleet(ctx, now()))
			}
			id = fleet.DeviceID(fmt.Sprint("new", step))
			addDevices(m, s, id)
			ids = append(ids, id)
		}
		past = append(past, snapshot{m.mark(), map[fleet.DeviceID]fleet.Device{}})
		devices, err := s.DevicesByID(ctx, ids)
		check(m, err)
		for _, d := range devices {
			past[step].devices[d.ID] = d
		}
	}
	return past
}

// matching returns the devices that match a query, in the order of their names.
func (p snapshot) matching(q fleet.Query) (list []fleet.Device) {
	for _, d := range p.devices {
		if _, ok := q.Match(d, offers, p.at); ok {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b fleet.Device) int {
		return strings.Compare(strings.ToLower(a.Title())+"\x00"+string(a.ID), strings.ToLower(b.Title())+"\x00"+string(b.ID))
	})
	return list
}

func deviceText(id fleet.DeviceID, name, board, chip, version string, tags []string, enrolment fleet.Enrolment,
	presence fleet.Presence, inventory string, retired bool, hold string) string {
	return fmt.Sprint(id, name, board, chip, version, tags, enrolment, presence, inventory, retired, hold)
}

func (p snapshot) line(d fleet.Device) string {
	return deviceText(d.ID, d.Name, d.Board, d.Chip, d.Version, d.Tags, d.Enrolment, d.Presence, d.InventoryID,
		d.RetiredAt != nil, p.hold(d))
}

func (p snapshot) hold(d fleet.Device) string {
	if d.Hold.Active(p.at) {
		return d.Hold.Reason + d.Hold.Since.UTC().String()
	}
	return ""
}

func pastLine(d history.Device) string {
	hold := ""
	if d.HoldSince != nil {
		hold = d.HoldReason + d.HoldSince.UTC().String()
	}
	return deviceText(d.ID, d.Name, d.Board, d.Chip, d.Version, d.Tags, d.Enrolment, d.Presence, d.Inventory, d.Retired,
		hold)
}

// fields returns what differs between two snapshots of a device.
func fields(p, q snapshot, id fleet.DeviceID) (fields []history.Field) {
	b, before := p.devices[id]
	a, after := q.devices[id]
	before, after = before && b.RetiredAt == nil, after && a.RetiredAt == nil
	if !before && !after {
		return nil
	}
	both := before && after
	for field, differs := range map[history.Field]bool{
		history.FieldAdded: !before, history.FieldRemoved: !after, history.FieldVersion: both && a.Version != b.Version,
		history.FieldTools: both && a.InventoryID != b.InventoryID, history.FieldBoard: both && a.Board != b.Board,
		history.FieldName: both && a.Name != b.Name, history.FieldTags: both && !slices.Equal(a.Tags, b.Tags),
		history.FieldHold:      both && p.holdReason(b) != q.holdReason(a),
		history.FieldEnrolment: both && a.Enrolment != b.Enrolment, history.FieldPresence: both && a.Presence != b.Presence,
	} {
		if differs {
			fields = append(fields, field)
		}
	}
	slices.SortFunc(fields, func(a, b history.Field) int {
		return slices.Index(history.Fields, a) - slices.Index(history.Fields, b)
	})
	return fields
}

func (p snapshot) holdReason(d fleet.Device) string {
	if d.Hold.Active(p.at) {
		return d.Hold.Reason
	}
	return ""
}

// versionCounts counts devices by version, as series of adoption do.
func (p snapshot) versionCounts(of map[fleet.DeviceID]bool) map[string]int {
	counts := map[string]int{}
	for id, d := range p.devices {
		if of[id] && d.RetiredAt == nil && d.Enrolment == fleet.EnrolmentEnrolled {
			counts[d.Version]++
		}
	}
	return counts
}

// The store answers about past moments what it answered then.
func TestHistoryAgreesWithSnapshots(t *testing.T) {
	m := newMoments(t)
	past := changeAtRandom(m, 120)
	now := past[len(past)-1]
	ctx := context.Background()
	kept := func(q fleet.Query) bool {
		for _, field := range []string{"seen", "crashed", "slot", "elf", "transport", "conflict", "safe_mode", "core_dump"} {
			if q.Asks(field) {
				return false
			}
		}
		return true
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SampledFrom(past).Draw(rt, "at")
		later := rapid.SampledFrom(past).Draw(rt, "later")
		q := genQuery(rt)
		if !kept(q) {
			q = fleet.Query{}
		}
		want := p.matching(q)
		page, err := m.h.Devices(ctx, history.Filter{At: p.at, Query: q, Limit: 200})
		if err != nil {
			rt.Fatal(err)
		}
		var lines, wanted []string
		tags := map[string]int{}
		for _, d := range page.Items {
			lines = append(lines, pastLine(d))
		}
		for _, d := range want {
			wanted = append(wanted, p.line(d))
			for _, tag := range d.Tags {
				tags[tag]++
			}
		}
		if !slices.Equal(lines, wanted) {
			rt.Fatalf("%q as of %s:\n%s\nwant\n%s", q.Text, p.at, strings.Join(lines, "\n"), strings.Join(wanted, "\n"))
		}
		c, err := m.h.Counts(ctx, p.at, q)
		if err != nil || c.Total != len(want) {
			rt.Fatalf("%d devices counted, want %d: %v", c.Total, len(want), err)
		}
		for _, n := range c.Tags {
			if tags[n.Value] != n.Count {
				rt.Fatalf("%d devices with the tag %q, want %d", n.Count, n.Value, tags[n.Value])
			}
		}
		if later.at.After(p.at) {
			d, err := m.h.Diff(ctx, history.DiffFilter{From: p.at, To: later.at, Query: q, Limit: 200})
			if err != nil {
				rt.Fatal(err)
			}
			got := map[fleet.DeviceID]string{}
			for _, c := range d.Page.Items {
				got[c.Device] = fmt.Sprint(c.Fields)
			}
			for id := range later.devices {
				then, before := p.devices[id]
				inService := func(at snapshot, d fleet.Device) bool {
					_, ok := q.Match(d, offers, at.at)
					return ok && d.RetiredAt == nil
				}
				want := ""
				if f := fields(p, later, id); len(f) > 0 && (before && inService(p, then) || inService(later, later.devices[id])) {
					want = fmt.Sprint(f)
				}
				if got[id] != want {
					rt.Fatalf("%s differs from %s to %s for %q in %q, want %q", id, p.at, later.at, q.Text, got[id], want)
				}
			}
			moments := []time.Time{p.at, later.at}
			of := map[fleet.DeviceID]bool{}
			for id, d := range now.devices {
				if !q.Asks("retired") {
					d.RetiredAt = nil
				}
				_, of[id] = q.Match(d, offers, time.Now())
			}
			series, err := m.s.VersionSeries(ctx, moments, q)
			if err != nil {
				rt.Fatal(err)
			}
			counts := []map[string]int{p.versionCounts(of), later.versionCounts(of)}
			for _, v := range series {
				for i := range moments {
					if counts[i][v.Version] != v.Counts[i] {
						rt.Fatalf("%d devices of %q run %q at %s, want %d", v.Counts[i], q.Text, v.Version, moments[i],
							counts[i][v.Version])
					}
					delete(counts[i], v.Version)
				}
			}
			if len(counts[0])+len(counts[1]) > 0 {
				rt.Fatalf("no series of %v", counts)
			}
		}
	})
}
