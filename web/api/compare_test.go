package api

import (
	"testing"

	"github.com/google/uuid"
)

// Comparisons over REST: of what has none, of what is unknown, and for whom. The store's test has the figures.
func TestComparisons(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/campaigns/", "/fanouts/"} {
		if p := w.get(t, path+uuid.NewString()+"/comparison").problem(t); p.Status != 404 {
			t.Errorf("%s: %d %s", path, p.Status, p.Code)
		}
		if p := w.get(t, path+"x/comparison").problem(t); p.Status != 422 && p.Status != 404 {
			t.Errorf("%sx: %d %s", path, p.Status, p.Code)
		}
		if r := w.as(t, "", "GET", path+uuid.NewString()+"/comparison", ""); r.status != 401 {
			t.Errorf("without a token: %d", r.status)
		}
	}
	f := decode[FanOutView](t, w.post(t, "/fanouts", `{"devices":["a085e3112233"],"tool":"self.get_device_status","arguments":{}}`), 201)
	w.await(t, "/fanouts/"+f.ID.String())
	v := decode[ComparisonView](t, w.get(t, "/fanouts/"+f.ID.String()+"/comparison"), 200)
	if v.Items == nil || len(v.Items) != 0 {
		t.Errorf("of a fan-out without failures: %+v", v)
	}
}
