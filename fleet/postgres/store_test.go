package postgres_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/postgres"
	"fleetd/web/i18n"
)

var admin = fleet.Principal{Kind: fleet.KindOperator, ID: "0190", Name: "ada", Role: fleet.RoleAdmin}

func newStore(t testing.TB) *postgres.Store {
	t.Helper()
	s := postgres.New(testDB(t), postgres.Options{})
	verifyAtEnd(t, s)
	return s
}

// now returns the time as PostgreSQL stores it: to the microsecond.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// said returns a reason as people read it.
func said(r fleet.Reason) string { return i18n.Because(i18n.English, time.UTC, "reason.", r) }

// text returns a reason with text that was not cleaned: the store must do that.
func text(s string) fleet.Reason {
	return fleet.Reason{Code: "legacy", Params: fleet.Params{"detail": s}}
}

func ptr[T any](v T) *T { return &v }

// poll returns a boot poll of an enrolled device.
func poll(id fleet.DeviceID, at time.Time) enrolment.PollRecord {
	return enrolment.PollRecord{
		Poll: enrolment.BootPoll{Device: id, ClientID: "c1", Board: "bread-compact-wifi", BoardType: "wifi", Chip: "esp32s3",
			Version: "2.4.0", ELFSHA256: "9f2c", Slot: "ota_0", IDFVersion: "5.5", RemoteAddr: "192.0.2.1", At: at,
			Facts: []byte(`{"version": 2}`)},
		Admission: enrolment.Admission{Device: id, Enrolment: fleet.EnrolmentEnrolled, ClientID: "c1"},
	}
}

func addDevices(t testing.TB, s *postgres.Store, ids ...fleet.DeviceID) {
	t.Helper()
	var polls []enrolment.PollRecord
	for _, id := range ids {
		polls = append(polls, poll(id, now()))
	}
	if err := s.SavePolls(t.Context(), polls); err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want %v", err, kind)
	}
}

// same compares what was stored with what was read back.
func same[T any](t testing.TB, got, want T, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, append(opts, cmpopts.EquateEmpty())...); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

// wantAllSet guards a round trip: a field that the test leaves at zero would pass without being
// stored. The named fields are exempt.
func wantAllSet(t testing.TB, v any, except ...string) {
	t.Helper()
	r := reflect.ValueOf(v)
	for i := range r.NumField() {
		if name := r.Type().Field(i).Name; r.Field(i).IsZero() && !slices.Contains(except, name) {
			t.Errorf("the test leaves %T.%s at zero", v, name)
		}
	}
}

func newCall(device fleet.DeviceID, state fleet.CallState) *fleet.Call {
	at := now()
	c := &fleet.Call{ID: uuid.Must(uuid.NewV7()), Device: device, Tool: "self.reboot",
		Arguments: []byte(`{"b": 1, "a": "\u0000"}`),
		Actor:     admin, State: state, RPCID: 7, Timeout: 10 * time.Second, CreatedAt: at}
	if state == fleet.CallSent {
		c.SentAt = &at
	}
	if state == fleet.CallPendingApproval {
		c.Approval = uuid.Must(uuid.NewV7())
	}
	if state == fleet.CallPendingDevice {
		c.WaitUntil = new(at.Add(time.Hour))
	}
	if state.Final() {
		c.FinishedAt = &at
	}
	return c
}

func finish(c *fleet.Call, state fleet.CallState, result string) *fleet.Call {
	at := now()
	c.State, c.FinishedAt = state, &at
	if result != "" {
		c.Result = []byte(result)
	}
	if state.Failed() {
		c.Error = &fleet.CallError{Code: "tool_error", Message: "no\x00pe \xff", Params: map[string]any{"limit": 7.0,
			"what": "a\x00b"}}
	}
	return c
}

func run(t testing.TB, s *postgres.Store) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
