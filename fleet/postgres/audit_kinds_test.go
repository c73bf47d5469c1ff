package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/call"
	"fleetd/fleet/origin"
	"fleetd/fleet/postgres"
	"fleetd/fleet/redaction"
)

func auditEntries(t *testing.T, ctx context.Context, s *postgres.Store, f audit.Filter) []audit.Entry {
	t.Helper()
	page, err := s.AuditEntries(ctx, f)
	check(t, err)
	return page.Items
}

func keys(list []audit.Entry) (all []string) {
	for _, e := range list {
		all = append(all, e.Key)
	}
	return all
}

// crowd makes connections of many devices in one millisecond, some in one microsecond.
func crowd(t *testing.T, s *postgres.Store, devices int) {
	t.Helper()
	at := now().Truncate(time.Millisecond).Add(-time.Minute)
	var changes []fleet.PresenceChange
	for i := range devices {
		id := fleet.DeviceID(fmt.Sprintf("crowd%d", i))
		addDevices(t, s, id)
		changes = append(changes, connect(id, 1, at.Add(time.Duration(i/5)*100*time.Microsecond)))
	}
	check(t, s.SavePresence(t.Context(), changes))
}

func TestAuditKinds(t *testing.T) {
	r := newRig(t)
	addDevices(t, r.Store, "d0", "e1")
	eventful(t, r.Store, "d0")
	c, deployments := r.campaign("d0", "e1")
	r.dispatch(1, dispatch(&deployments[0]))
	crowd(t, r.Store, 20)
	all := auditEntries(t, t.Context(), r.Store, audit.Filter{Kinds: audit.Kinds, Limit: fleet.MaxLimit})
	of := func(kind audit.Kind) (list []audit.Entry) {
		for _, e := range all {
			if e.Kind == kind {
				list = append(list, e)
			}
		}
		return list
	}

	t.Run("each kind", func(t *testing.T) {
		for _, kind := range audit.Kinds {
			want := keys(of(kind))
			if len(want) == 0 {
				t.Errorf("there is no %s", kind)
			}
			same(t, keys(auditEntries(t, t.Context(), r.Store, audit.Filter{Kinds: []audit.Kind{kind}, Limit: fleet.MaxLimit})),
				want)
		}
		same(t, keys(auditEntries(t, t.Context(), r.Store, audit.Filter{Limit: fleet.MaxLimit})), keys(of(audit.Action)))
		for i, e := range all[1:] {
			if e.At.After(all[i].At.Add(time.Millisecond)) {
				t.Errorf("entry %d, %v, is newer than the one before it", i+1, e.At)
			}
		}
	})

	t.Run("pages", func(t *testing.T) {
		for _, kinds := range [][]audit.Kind{audit.Kinds, {audit.Connection}, {audit.Call, audit.Firmware}} {
			whole := auditEntries(t, t.Context(), r.Store, audit.Filter{Kinds: kinds, Limit: fleet.MaxLimit})
			for _, limit := range []int{1, 2, 7} {
				f := audit.Filter{Kinds: kinds, Limit: limit}
				var down, up []audit.Entry
				prev := ""
				for {
					page, err := r.AuditEntries(t.Context(), f)
					check(t, err)
					down = append(down, page.Items...)
					if prev, f.Cursor = page.Prev, page.Next; f.Cursor == "" {
						up = slices.Clone(page.Items)
						break
					}
				}
				same(t, keys(down), keys(whole))
				for prev != "" {
					f.Cursor = prev
					page, err := r.AuditEntries(t.Context(), f)
					check(t, err)
					up, prev = append(slices.Clone(page.Items), up...), page.Prev
				}
				same(t, keys(up), keys(whole))
			}
		}
	})

	t.Run("filters", func(t *testing.T) {
		tests := []struct {
			name string
			f    audit.Filter
			want func(audit.Entry) bool
		}{
			{"device", audit.Filter{Subject: "d0"}, func(e audit.Entry) bool { return e.Subject == "d0" }},
			{"campaign", audit.Filter{Subject: c.ID.String()}, func(e audit.Entry) bool {
				return e.Kind == audit.Step && e.Detail["campaign_id"] == c.ID.String() || e.Subject == c.ID.String()
			}},
			{"presence", audit.Filter{Outcome: "offline"}, func(e audit.Entry) bool { return e.Outcome == "offline" }},
			{"state", audit.Filter{Outcome: "succeeded"}, func(e audit.Entry) bool { return e.Outcome == "succeeded" }},
			{"action", audit.Filter{Action: "device.hold"}, func(e audit.Entry) bool { return e.Action == "device.hold" }},
			{"kind as action", audit.Filter{Action: "firmware"}, func(e audit.Entry) bool { return e.Kind == audit.Firmware }},
			{"actor", audit.Filter{Actor: admin.Name}, func(e audit.Entry) bool { return e.Actor.Name == admin.Name }},
			{"nobody", audit.Filter{Actor: "nobody"}, func(audit.Entry) bool { return false }},
			{"since", audit.Filter{Since: all[9].At}, func(e audit.Entry) bool { return !e.At.Before(all[9].At) }},
			{"until", audit.Filter{Until: all[9].At}, func(e audit.Entry) bool { return e.At.Before(all[9].At) }},
			{"an unknown trace", audit.Filter{Trace: origin.TraceID{1}}, func(audit.Entry) bool { return false }},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				tt.f.Kinds, tt.f.Limit = audit.Kinds, fleet.MaxLimit
				var want []audit.Entry
				for _, e := range all {
					if tt.want(e) {
						want = append(want, e)
					}
				}
				same(t, keys(auditEntries(t, t.Context(), r.Store, tt.f)), keys(want))
			})
		}
	})

	t.Run("scope", func(t *testing.T) {
		scope, err := fleet.NewScope("id:d*", "", nil)
		check(t, err)
		narrow := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
		seen := map[audit.Kind]bool{}
		for _, e := range auditEntries(t, narrow, r.Store, audit.Filter{Kinds: audit.Kinds, Limit: fleet.MaxLimit}) {
			seen[e.Kind] = true
			if e.Subject != "d0" {
				t.Errorf("an entry of %s is seen: %+v", e.Subject, e)
			}
			if strings.Contains(fmt.Sprint(e), c.ID.String()) {
				t.Errorf("an entry names a campaign with a hidden device: %+v", e)
			}
		}
		same(t, seen, map[audit.Kind]bool{audit.Action: true, audit.Call: true, audit.Connection: true, audit.Firmware: true})
	})

	t.Run("bad cursors", func(t *testing.T) {
		for _, bad := range []string{"x", "eyJsIjoiYXVkaXQiLCJpIjoieCJ9", "eyJsIjoidGltZWxpbmUiLCJpIjoieCJ9"} {
			_, err := r.AuditEntries(t.Context(), audit.Filter{Kinds: audit.Kinds, Cursor: bad})
			wantKind(t, err, fleet.ErrInvalid)
		}
	})
}

// The origin of a request is on record with the call and with the audit entry, and leads to both.
func TestAuditOrigins(t *testing.T) {
	s := newStore(t)
	addDevices(t, s, unit)
	trace, _ := origin.ParseTraceID("0af7651916cd43dd8448eb211c80319c")
	from := origin.Origin{Address: "192.0.2.7", Client: "curl/8.1", Trace: trace}
	ctx := origin.With(t.Context(), from)
	check(t, s.SetHold(ctx, admin, unit, &fleet.Hold{Reason: "mine", By: admin, Since: now(), Until: ptr(now())}))
	for range 2 { // the second finds its origin stored
		c := newCall(unit, fleet.CallSent)
		c.Origin = from
		check(t, s.InsertCall(ctx, c))
		stored, err := s.Call(ctx, c.ID)
		check(t, err)
		same(t, stored.Origin, from)
		check(t, s.FinishCall(ctx, finish(c, fleet.CallSucceeded, `{"content":[]}`)))
	}
	check(t, s.InsertCall(t.Context(), newCall(unit, fleet.CallSent)))

	// However a call is stored first, its origin is, too. Each way has one that is not stored yet.
	ways := map[string]func(*fleet.Call) error{
		"settled": func(c *fleet.Call) error {
			return s.SettleCalls(t.Context(), []*fleet.Call{finish(c, fleet.CallSucceeded, `{"content":[]}`)})
		},
		"waits for its device": func(c *fleet.Call) error {
			c.State, c.SentAt, c.RPCID, c.WaitUntil = fleet.CallPendingDevice, nil, 0, ptr(now().Add(time.Hour))
			return s.WaitForDevice(t.Context(), c, call.Wait{})
		},
		"waits for an approval": func(c *fleet.Call) error {
			c.State, c.SentAt, c.RPCID = fleet.CallPendingApproval, nil, 0
			a := call.Approval{ID: uuid.Must(uuid.NewV7()), Subject: call.ApprovalOfCall, SubjectID: c.ID, Device: unit,
				AskedBy: c.Actor, Targets: 1, Tool: c.Tool, Arguments: c.Arguments, CreatedAt: c.CreatedAt,
				ExpiresAt: now().Add(time.Hour), State: call.ApprovalWaiting}
			c.Approval = a.ID
			return s.AskForCall(t.Context(), c, &a)
		},
	}
	for way, store := range ways {
		c := newCall(unit, fleet.CallSent)
		c.Origin = origin.Origin{Address: "192.0.2.8", Client: way}
		if err := store(c); err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		stored, err := s.Call(ctx, c.ID)
		check(t, err)
		same(t, stored.Origin, c.Origin)
	}
	traced := auditEntries(t, t.Context(), s, audit.Filter{Kinds: audit.Kinds, Trace: trace})
	var kinds []audit.Kind
	for _, e := range traced {
		kinds = append(kinds, e.Kind)
		same(t, e.Origin, from)
	}
	same(t, kinds, []audit.Kind{audit.Call, audit.Call, audit.Action})
	for address, want := range map[string]int{"192.0.2.7": 3, "192.0.2.8": len(ways), "192.0.2.9": 0} {
		found := auditEntries(t, t.Context(), s, audit.Filter{Kinds: audit.Kinds, Address: address})
		if len(found) != want {
			t.Errorf("%s has %d entries, want %d", address, len(found), want)
		}
		for _, e := range found {
			same(t, e.Origin.Address, address)
		}
		var paged []audit.Entry
		for f := (audit.Filter{Kinds: audit.Kinds, Address: address, Subject: string(unit), Limit: 2}); ; {
			page, err := s.AuditEntries(t.Context(), f)
			check(t, err)
			if paged, f.Cursor = append(paged, page.Items...), page.Next; f.Cursor == "" {
				break
			}
		}
		same(t, keys(paged), keys(found))
		scope, err := fleet.NewScope("id:other", "", nil)
		check(t, err)
		narrow := fleet.WithScope(t.Context(), fleet.Principal{Role: fleet.RoleViewer, Scope: scope})
		same(t, len(auditEntries(t, narrow, s, audit.Filter{Kinds: audit.Kinds, Address: address})), 0)
	}
	theirs := audit.Filter{Kinds: audit.Kinds, Subject: string(unit)}
	same(t, len(auditEntries(t, t.Context(), s, theirs)), 5+len(ways)) // and its firmware
}

// However large the tables, a page of the audit log reads the rows that it shows.
func TestAuditReadsNoWholeTable(t *testing.T) {
	db := testDB(t)
	s := postgres.New(db, postgres.Options{})
	addDevices(t, s, unit)
	check(t, s.SetHold(origin.With(t.Context(), origin.Origin{Address: "192.0.2.7"}), admin, unit,
		&fleet.Hold{Reason: "mine", By: admin, Since: now(), Until: ptr(now())}))
	grow(t, db)
	trace, _ := origin.ParseTraceID("0af7651916cd43dd8448eb211c80319c")
	for _, f := range []audit.Filter{{}, {Subject: "d7"}, {Actor: "nobody"}, {Action: "t"}, {Outcome: "timed_out"},
		{Outcome: "online"}, {Trace: trace}, {Address: "192.0.2.7"},
		{Since: now().Add(-time.Minute)}, {Until: now().Add(-time.Hour)},
		{Kinds: []audit.Kind{audit.Action}}} {
		if f.Kinds == nil {
			f.Kinds = audit.Kinds
		}
		sql, args, err := postgres.AuditQuery(t.Context(), f)
		check(t, err)
		if lines, plan := wholeReads(t, db, sql, args); len(lines) > 0 {
			t.Errorf("%+v: %s\n%s", f, lines, plan)
		}
	}
}

// An entry about a redaction rule shows its tool, also after the rule was deleted.
func TestAuditNamesRedactionRules(t *testing.T) {
	s := newStore(t)
	rule := redaction.Rule{ID: uuid.Must(uuid.NewV7()), Tool: "self.wifi.*", Path: "$.password", Revision: 1,
		CreatedAt: now(), UpdatedAt: now()}
	version, err := s.RedactionVersion(t.Context())
	check(t, err)
	check(t, s.CreateRedaction(t.Context(), admin, version, rule))
	check(t, s.DeleteRedaction(t.Context(), admin, version+1, rule))
	entries := auditEntries(t, t.Context(), s, audit.Filter{Subject: rule.ID.String()})
	if len(entries) != 2 {
		t.Fatalf("%d entries", len(entries))
	}
	for _, e := range entries {
		same(t, e.Name, rule.Tool)
	}
}
