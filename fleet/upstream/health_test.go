package upstream_test

import (
	"reflect"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

// A voice server that two edges use is down if neither reaches it, and not if one does.
func TestHealthOfTwoEdges(t *testing.T) {
	at := func(minute int) *time.Time {
		v := time.Date(2026, 11, 1, 12, minute, 0, 0, time.UTC)
		return &v
	}
	failing := upstream.Health{LastSuccess: at(1), HelloIn: time.Second, Failures: 2, Failed: 2, LastFailure: at(5),
		LastError: fleet.EndedUnreachable, RetryAt: at(6), Open: 1}
	for _, tt := range []struct {
		name        string
		other, want upstream.Health
	}{
		{"an unused edge", upstream.Health{}, upstream.Health{LastSuccess: at(1), HelloIn: time.Second, Failures: 2,
			Failed: 2, LastFailure: at(5), LastError: fleet.EndedUnreachable, Open: 1}},
		{"a later success", upstream.Health{LastSuccess: at(7), HelloIn: 2 * time.Second, Open: 3},
			upstream.Health{LastSuccess: at(7), HelloIn: 2 * time.Second, Failed: 2, LastFailure: at(5),
				LastError: fleet.EndedUnreachable, Open: 4}},
		{"an earlier success", upstream.Health{LastSuccess: at(3), HelloIn: 2 * time.Second},
			upstream.Health{LastSuccess: at(3), HelloIn: 2 * time.Second, Failures: 2, Failed: 2, LastFailure: at(5),
				LastError: fleet.EndedUnreachable, Open: 1}},
		{"more failures", upstream.Health{Failures: 1, Failed: 4, LastFailure: at(8), LastError: fleet.EndedNoHello,
			RetryAt: at(9)}, upstream.Health{LastSuccess: at(1), HelloIn: time.Second, Failures: 3, Failed: 6,
			LastFailure: at(8), LastError: fleet.EndedNoHello, RetryAt: at(6), Open: 1}},
	} {
		if got := failing.And(tt.other); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if got := tt.other.And(failing); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s, the other way round: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
