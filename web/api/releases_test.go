package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

// release creates a release with an image that fits the world's devices.
func (w *world) release(t testing.TB) releaseView {
	t.Helper()
	i := w.push(t, esptest.App{Version: "2.4.3"})
	return decode[releaseView](t, w.post(t, "/releases", `{"images":["`+i.SHA256+`"]}`), 201)
}

func TestImages(t *testing.T) {
	w := newWorld(t)
	s3 := w.push(t, esptest.App{Version: "2.4.3"})
	c3 := w.push(t, esptest.App{Version: "2.5.0", Chip: "esp32c3"})
	for query, want := range map[string]int{"": 2, "?chip=esp32c3": 1, "?version=2.4.3": 1, "?board=esp-box-3": 0,
		"?chip=esp32c3&version=2.4.3": 0} {
		if got := decode[list[imageView]](t, w.get(t, "/images"+query), 200); len(got.Items) != want {
			t.Errorf("%q: %d images, want %d", query, len(got.Items), want)
		}
	}
	patched := w.as(t, fleet.RoleOperator, http.MethodPatch, "/images/"+s3.SHA256, `{"board":"bread-compact-wifi"}`)
	if i := decode[imageView](t, patched, 200); i.Board != "bread-compact-wifi" || i.Version != "2.4.3" {
		t.Errorf("answered %s", patched.body)
	}
	fit := decode[fitView](t, w.get(t, "/images/"+s3.SHA256+"/fit?q=id:a085e31122*"), 200)
	if fit.Matched != 3 || fit.Fit != 2 || len(fit.Sample) != 2 || len(fit.Misfits) != 1 ||
		fit.Misfits[0].Reason != firmware.SkipNotEnrolled {
		t.Errorf("the image fits %+v", fit)
	}
	if r := w.as(t, fleet.RoleOperator, http.MethodDelete, "/images/"+c3.SHA256, ""); r.status != 204 {
		t.Errorf("deleting is answered %d %s", r.status, r.body)
	}
	if p := w.get(t, "/images/"+c3.SHA256).problem(t); p.Code != "unknown_image" {
		t.Errorf("a deleted image is answered %+v", p)
	}
}

func TestRevokeImage(t *testing.T) {
	w := newWorld(t)
	path := "/images/" + w.push(t, esptest.App{}).SHA256 + "/revoke"
	if p := w.as(t, fleet.RoleOperator, http.MethodPost, path, `{"reason":"bricks"}`).problem(t); p.Status != 403 {
		t.Errorf("an operator is answered %+v", p)
	}
	i := decode[imageView](t, w.post(t, path, `{"reason":"bricks"}`), 200)
	if i.RevokedAt == nil || i.RevokedBy != "admin-script" || i.RevokeReason != "bricks" {
		t.Errorf("answered %+v", i)
	}
	if p := w.post(t, "/releases", `{"images":["`+i.SHA256+`"]}`).problem(t); p.Status < 409 {
		t.Errorf("a release of it is answered %+v", p)
	}
}

func TestReleases(t *testing.T) {
	w := newWorld(t)
	i := w.push(t, esptest.App{Version: "2.4.3"})
	body := `{"images":["` + i.SHA256 + `"],"notes":"louder","draft":true}`
	made := w.post(t, "/releases", body, "Idempotency-Key", "k")
	r := decode[releaseView](t, made, 201)
	if r.Version != "2.4.3" || r.State != firmware.ReleaseDraft || len(r.Images) != 1 || r.Images[0].SHA256 != i.SHA256 ||
		r.Notes != "louder" ||
		made.header.Get("Location") != prefix+"/releases/"+r.ID {
		t.Errorf("answered %v %s", made.header, made.body)
	}
	if again := w.post(t, "/releases", body, "Idempotency-Key", "k"); string(again.body) != string(made.body) ||
		again.header.Get(replayedHeader) != "true" {
		t.Errorf("the repetition is answered %s", again.body)
	}
	path := "/releases/" + r.ID
	if r := decode[releaseView](t, w.as(t, fleet.RoleOperator, http.MethodPatch, path, `{"version":"2.4.3-lab"}`),
		200); r.Version != "2.4.3-lab" || r.Notes != "louder" || len(r.Images) != 1 {
		t.Errorf("changed to %+v", r)
	}
	for _, step := range []struct {
		verb, body string
		want       firmware.ReleaseState
	}{{"release", "", firmware.ReleaseReleased}, {"deprecate", "", firmware.ReleaseDeprecated},
		{"revoke", `{"reason":"bricks"}`, firmware.ReleaseRevoked}} {
		if r := decode[releaseView](t, w.post(t, path+"/"+step.verb, step.body), 200); r.State != step.want {
			t.Errorf("%s: the release is %s", step.verb, r.State)
		}
	}
	if p := w.post(t, path+"/release", "").problem(t); p.Status != 409 {
		t.Errorf("releasing what was revoked is answered %+v", p)
	}
	if all := decode[list[releaseView]](t, w.get(t, "/releases?state=revoked"), 200); len(all.Items) != 1 ||
		all.Items[0].Images[0].RevokedAt == nil {
		t.Errorf("the revoked releases are %+v", all.Items)
	}
}

func TestReleaseFit(t *testing.T) {
	w := newWorld(t)
	r := w.release(t)
	if r.State != firmware.ReleaseReleased {
		t.Errorf("without a word it is %s", r.State)
	}
	fit := decode[fitView](t, w.get(t, "/releases/"+r.ID+"/fit"), 200)
	if fit.Matched != 3 || fit.Fit != 2 {
		t.Errorf("it fits %+v", fit)
	}
	c := decode[CampaignView](t, w.post(t, "/campaigns", `{"name":"spring","release_id":"`+r.ID+`","q":"chip:esp32s3"}`), 201)
	d, err := w.store.Deployment(t.Context(), c.ID, fit.Sample[0])
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	d.State, d.Class, d.FinishedAt = campaign.DeploymentRolledBack, campaign.FailureRolledBack, &now
	if stale, err := w.store.SaveDeployments(t.Context(), []campaign.DeploymentChange{{Deployment: d}}); err != nil ||
		len(stale) > 0 {
		t.Fatal(stale, err)
	}
	back := decode[fitView](t, w.get(t, "/releases/"+r.ID+"/fit?q=id:"+string(d.Device)), 200)
	if back.Matched != 1 || back.Fit != 0 || back.RolledBack != 1 || !slices.Equal(back.RolledBackSample, fit.Sample[:1]) {
		t.Errorf("of the device that rolled it back: %+v", back)
	}
	if p := w.get(t, "/releases/"+r.ID+"/fit?q=colour:red").problem(t); p.Status != 422 {
		t.Errorf("a wrong filter is answered %+v", p)
	}
	for images, code := range map[string]string{strings.Repeat("0", 64): "unknown_image", "nonsense": "unknown_image"} {
		if p := w.post(t, "/releases", `{"images":["`+images+`"]}`).problem(t); p.Status != 422 || p.Code != code ||
			p.Field != "images" {
			t.Errorf("%.10s: answered %+v", images, p)
		}
	}
}
