package main

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A deploymentJSON is REST's JSON of a unit's deployment.
type deploymentJSON struct {
	State, Reason string
	Class         string `json:"failure_class"`
	ToVersion     string `json:"to_version"`
	Attempts      int
	Percent       *int
	Evidence      []struct{ Kind, Detail string }
}

// hasEvidence reports whether there is evidence of a kind that contains a text.
func (v deploymentJSON) hasEvidence(kind, text string) bool {
	for _, e := range v.Evidence {
		if e.Kind == kind && strings.Contains(e.Detail, text) {
			return true
		}
	}
	return false
}

// campaign brings a release of one image to the units with a tag.
func (d *daemon) campaign(name, tag, file string) (id string) {
	d.t.Helper()
	release := d.made("id", "release", "create", d.made("sha256", "image", "push", file, "--board", unitBoard))
	var c struct{ ID, State string }
	if status := d.rest("POST", "/campaigns", map[string]any{"name": name, "release_id": release, "q": "tag:" + tag,
		"max_attempts": 3,
		"waves":        []any{map[string]any{"name": "all", "percent": 100, "soak_ms": 0}}}, &c); status >= 300 {
		d.t.Fatalf("campaign %s: %d", name, status)
	}
	if status := d.rest("POST", "/campaigns/"+c.ID+"/start", map[string]any{}, &c); status != http.StatusOK {
		d.t.Fatalf("campaign %s is not started: %d %+v", name, status, c)
	}
	return c.ID
}

var finalStates = map[string]bool{"succeeded": true, "failed": true, "timed_out": true, "rolled_back": true,
	"wrong_build": true,
	"unhealthy":   true, "rejected": true, "skipped": true, "canceled": true, "expired": true, "aborted": true,
	"removed": true}

// verdict waits for the outcome of a unit's deployment. The second attempt comes a minute after
// the first.
func (d *daemon) verdict(campaign string, u *unit) (v deploymentJSON) {
	d.t.Helper()
	d.within(5*time.Minute, "judged: "+u.id, func() bool {
		v = d.deployment(campaign, u)
		return finalStates[v.State]
	})
	return v
}

func (d *daemon) deployment(campaign string, u *unit) (v deploymentJSON) {
	d.t.Helper()
	d.rest("GET", "/campaigns/"+campaign+"/deployments/"+u.id, nil, &v)
	return v
}

func (d *daemon) tagged(tag string, units ...*unit) {
	d.t.Helper()
	for _, u := range units {
		var v deviceView
		d.rest("PATCH", "/devices/"+u.id, map[string]any{"tags": []string{tag}}, &v)
	}
}

func unitUpgrades(t *testing.T, d *daemon) {
	u := newUnit(t, d, 2)
	u.start()
	d.joined(u)
	d.tagged("upgrades", u)
	c := d.campaign("to 1.1.0", "upgrades", buildImage(t, "1.1.0", ""))
	v := d.verdict(c, u)
	if v.State != "succeeded" || v.Attempts != 1 || v.Percent == nil || *v.Percent != 100 ||
		!v.hasEvidence("job", "accepted") || !v.hasEvidence("job", "progress 100") {
		t.Errorf("the deployment: %+v", v)
	}
	d.runs(u, "1.1.0", "ota_1")
	if job := d.job(u, "done"); job.Kind != "upgrade" || !strings.HasSuffix(job.ID, ".1") {
		t.Errorf("the job: %+v", job)
	}
}

// A unit that accepts only signed images refuses with its own message, and keeps running.
func unitTakesSignedImages(t *testing.T, d *daemon) {
	ours, public := signingKeys(t, d)
	theirs, _ := signingKeys(t, d)
	u := newUnit(t, d, 3, "--signed-by", public)
	u.start()
	d.joined(u)
	d.tagged("signed", u)
	tests := []struct {
		version, key  string
		state, reason string
	}{
		{"1.1.1", "", "rejected", "only signed images"},
		{"1.1.2", theirs, "rejected", "signature"},
		{"1.1.3", ours, "succeeded", ""},
	}
	for _, tt := range tests {
		file := buildImage(t, tt.version, "")
		if tt.key != "" {
			d.run("image", "sign", file, "--key", tt.key) // its manifest is uploaded with it
		}
		v := d.verdict(d.campaign("signed "+tt.version, "signed", file), u)
		if v.State != tt.state || !strings.Contains(v.Reason, tt.reason) || tt.reason != "" && !strings.HasPrefix(v.Reason,
			"the device reports: ") {
			t.Errorf("%s ended %+v, want %s and %q", tt.version, v, tt.state, tt.reason)
		}
		if tt.state == "succeeded" {
			d.runs(u, tt.version, "ota_1")
		} else {
			d.runs(u, "1.0.0", "ota_0")
		}
	}
}

// signingKeys creates a pair with "fleetd image key", and returns the public key in the form
// that a unit accepts.
func signingKeys(t *testing.T, d *daemon) (private, public string) {
	t.Helper()
	private = filepath.Join(t.TempDir(), "release.pem")
	out := d.run("image", "key", private)
	option := regexp.MustCompile(`--signed-by ([0-9a-f]{64})`).FindSubmatch(out)
	if option == nil {
		t.Fatalf("image key printed %s", out)
	}
	return private, string(option[1])
}

func unitGoesBack(t *testing.T, d *daemon) {
	u := newUnit(t, d, 4)
	u.start()
	d.joined(u)
	d.tagged("goes-back", u)
	v := d.verdict(d.campaign("to a bad build", "goes-back", buildImage(t, "1.2.0", `{"selftest":"fail"}`)), u)
	if v.State != "rolled_back" || v.Class != "rolled_back" || !strings.HasPrefix(v.Reason, "the device reports: ") ||
		!strings.Contains(v.Reason, "self-test") {
		t.Errorf("the deployment: %+v", v)
	}
	d.runs(u, "1.0.0", "ota_0")
	if job := d.job(u, "failed"); job.Code != "rolled_back" || !strings.Contains(job.Reason, "self-test") {
		t.Errorf("the job: %+v", job)
	}
}

// runs waits until fleetd shows a unit online with a build.
func (d *daemon) runs(u *unit, version, slot string) {
	d.t.Helper()
	d.eventually(u.id+" running "+version, func() bool {
		v := d.online(u)
		return v.Version == version && v.Slot == slot
	})
}

type jobJSON struct{ ID, Kind, State, Code, Reason string }

// job waits for the state of a unit's only job.
func (d *daemon) job(u *unit, state string) jobJSON {
	d.t.Helper()
	var jobs list[jobJSON]
	d.eventually("a job that is "+state, func() bool {
		d.rest("GET", "/devices/"+u.id+"/jobs", nil, &jobs)
		return len(jobs.Items) == 1 && jobs.Items[0].State == state
	})
	return jobs.Items[0]
}

// cuts are the steps of an upgrade that change the flash. Until the last byte the old image
// boots; after the switch the new one does.
var cuts = []struct {
	step, build, state string
	attempts           int
}{
	{"update.marked", "", "succeeded", 2}, {"update.opened", "", "succeeded", 2}, {"update.write:2", "", "succeeded", 2},
	{"update.synced", "", "succeeded", 2},
	{"update.switched", "", "succeeded", 1}, {"update.valid", "", "succeeded", 1},
	{"update.invalid", `{"selftest":"fail"}`, "rolled_back", 1},
}

// The power fails at each step, and returns. A cut before the switch costs an attempt, a later
// one costs nothing; a build that fails its test does not stay.
func unitLosesPower(t *testing.T, d *daemon) {
	units, campaigns := make([]*unit, len(cuts)), map[string]string{}
	for i, cut := range cuts {
		units[i] = newUnit(t, d, 16+i)
		units[i].start("kill=" + cut.step)
	}
	for i, u := range units {
		d.joined(u)
		d.tagged("power-good", u)
		if cuts[i].build != "" {
			d.tagged("power-bad", u)
		}
	}
	campaigns[""] = d.campaign("power cuts", "power-good", buildImage(t, "1.3.0", ""))
	campaigns[cuts[6].build] = d.campaign("power cuts of a bad build", "power-bad", buildImage(t, "1.3.1", cuts[6].build))
	for i, u := range units {
		if !u.died(3 * time.Minute) {
			t.Fatalf("%s was not reached: %+v", cuts[i].step, d.deployment(campaigns[cuts[i].build], u))
		}
		u.start()
	}
	for i, u := range units {
		cut := cuts[i]
		v := d.verdict(campaigns[cut.build], u)
		if v.State != cut.state || v.Attempts != cut.attempts || cut.state == "rolled_back" && !strings.HasPrefix(v.Reason,
			"the device reports: ") {
			t.Errorf("%s: %+v", cut.step, v)
		}
		if cut.state == "succeeded" {
			d.runs(u, "1.3.0", "ota_1")
		} else {
			d.runs(u, "1.0.0", "ota_0")
		}
		if c, text := d.call(u, "self.get_system_info", nil); c.State != "succeeded" || text == "" {
			t.Errorf("%s: %+v", cut.step, c)
		}
	}
}
