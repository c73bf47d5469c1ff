package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
	"fleetd/web/ui"
)

// keepPicture stores a picture of a device's screen for a call.
func (c *site) keepPicture(id fleet.DeviceID, of uuid.UUID) picture.Snapshot {
	c.t.Helper()
	ctx := context.WithoutCancel(c.t.Context())
	link, err := c.snapshots.UploadURL(ctx, id, of, time.Hour)
	if err != nil {
		c.t.Error(err)
	}
	shot, err := c.snapshots.Receive(ctx, path.Base(link), func() (io.Reader, error) {
		return bytes.NewReader(testPNG(c.t)), nil
	})
	if err != nil {
		c.t.Error(err)
	}
	return shot
}

// The gallery of a device has both kinds, leads to each picture and from there to its neighbours, and
// compares two.
func TestGallery(t *testing.T) {
	c := newConsole(t)
	const id = "a085e3112233"
	c.enrol(id)
	b := c.as(fleet.RoleViewer)
	b.get(dev + "/screen").wantStatus(200)
	var shots []picture.Snapshot
	for range 3 {
		shots = append(shots, c.keepPicture(id, uuid.Nil))
	}
	photo, err := c.snapshots.Photo(t.Context(), id, "What is <i>this</i>?", bytes.NewReader(testPNG(t)))
	if err != nil {
		t.Fatal(err)
	}
	of := func(p *page) (ids []string) {
		for _, box := range p.find("input[name=p]") {
			ids = append(ids, attribute(box, "value"))
		}
		return ids
	}
	want := func(at string, all ...picture.Snapshot) {
		t.Helper()
		var ids []string
		for _, n := range all {
			ids = append(ids, n.ID.String())
		}
		if got := of(b.get(at).wantStatus(200)); strings.Join(got, " ") != strings.Join(ids, " ") {
			t.Errorf("%s shows %v, want %v", at, got, ids)
		}
	}
	want(dev+"/screen", photo.Snapshot, shots[2], shots[1], shots[0])
	want(dev+"/screen?kind=camera", photo.Snapshot)
	want(dev+"/screen?kind=screen&limit=2", shots[2], shots[1])
	want(dev + "/screen?until=2020-01-01T00:00")
	want(dev+"/screen?since=2020-01-01T00:00&kind=camera", photo.Snapshot)
	b.get(dev + "/screen?cursor=x").wantRedirect(dev + "/screen")

	steps := func(p *page) (ids []string) {
		for _, key := range []string{"ArrowLeft", "ArrowRight"} {
			for _, a := range p.find("a[data-key=" + key + "]") {
				u, _ := url.Parse(attribute(a, "href"))
				ids = append(ids, path.Base(u.Path))
			}
		}
		return ids
	}
	p := b.get(ui.PicturePath(shots[1].ID.String()) + "?kind=screen").wantStatus(200)
	if got := strings.Join(steps(p), " "); got != shots[2].ID.String()+" "+shots[0].ID.String() {
		t.Errorf("the neighbours are %s", got)
	}
	p = b.get(ui.PicturePath(photo.Snapshot.ID.String()) + "?kind=camera").wantStatus(200)
	if got := steps(p); len(got) != 0 {
		t.Errorf("the only camera picture has the neighbours %v", got)
	}
	p.wantText("dd[class=foreign prose]", "What is <i>this</i>?")

	file := b.get(ui.SnapshotPath(shots[0].ID.String()) + "?download=1").wantStatus(200)
	if got := file.header.Get("Content-Disposition"); !strings.HasPrefix(got, `attachment; filename="a085e3112233-screen-`) ||
		!strings.HasSuffix(got, `Z.png"`) {
		t.Errorf("downloaded as %s", got)
	}
	one, two := shots[0].ID.String(), shots[2].ID.String()
	b.get(ui.PathCompare + "?p=" + two + "&p=" + one).wantRedirect(ui.CompareURL(one, two, false))
	b.get(ui.PathCompare+"?p="+two).wantText("[role=alert]", "Choose two pictures; 1 is chosen.")
	for _, overlay := range []bool{false, true} {
		p := b.get(ui.CompareURL(one, two, overlay)).wantStatus(200)
		if n := len(p.find("figure[class=compare-side]")); n != 2 {
			t.Errorf("%d pictures side by side", n)
		}
		if n := len(p.find("input[data-splits=overlay]")); (n == 1) != overlay {
			t.Errorf("%d sliders", n)
		}
	}
	b.get(ui.CompareURL(one, "", false) + "&device=" + id).wantRedirect(ui.CompareURL(one, two, false))
	b.get(ui.CompareURL(one, "", false)+"&device=a085e3119999").wantText("[role=alert]", "This device has no picture of this kind.")
	b.get(ui.CompareURL(one, uuid.NewString(), false)).wantStatus(404)
	b.get(ui.CompareURL(one, "x", false)).wantStatus(404)
}

// The gallery of a fan-out has the newest picture of each device that took one for it.
func TestGalleryOfAFanOut(t *testing.T) {
	c := newConsole(t)
	latest := map[fleet.DeviceID]string{}
	ids := []fleet.DeviceID{"a085e3112233", "a085e3112234", "a085e3112235"}
	for _, id := range ids {
		c.enrol(id)
		c.connect(id, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
			return fleettest.Text("ok"), nil
		})
	}
	f, err := c.fanOuts.Create(t.Context(), call.FanOutRequest{Actor: anna, Query: "id:a085e31122*",
		Tool: "self.get_device_status"})
	if err != nil {
		t.Fatal(err)
	}
	c.ended(f)
	made, err := c.store.Calls(t.Context(), call.Filter{FanOut: f.ID})
	if err != nil || len(made.Items) != 3 {
		t.Fatalf("%d calls, %v", len(made.Items), err)
	}
	for _, m := range made.Items {
		if m.Device != ids[2] {
			c.keepPicture(m.Device, m.ID)
			latest[m.Device] = c.keepPicture(m.Device, m.ID).ID.String()
		}
		c.keepPicture(m.Device, uuid.Nil) // not for the fan-out
	}
	b := c.as(fleet.RoleViewer)
	p := b.get(ui.FanOutPath(f.ID.String(), "pictures")).wantStatus(200)
	var got []string
	for _, box := range p.find("input[name=p]") {
		got = append(got, attribute(box, "value"))
	}
	if len(got) != 2 || got[0] != latest[ids[0]] || got[1] != latest[ids[1]] {
		t.Errorf("pictures %v, want %v", got, latest)
	}
	p = b.get(ui.PicturePath(got[0]) + "?fanout=" + f.ID.String()).wantStatus(200)
	if a := p.find("a[data-key=ArrowRight]"); len(a) != 1 || !strings.Contains(attribute(a[0], "href"), got[1]) {
		t.Error("the first picture does not lead to the next device")
	}
	next := b.get(ui.FanOutPath(f.ID.String(), "pictures") + "?limit=1").wantStatus(200).find("a[rel=next]")
	if len(next) != 1 {
		t.Fatal("no second page")
	}
	if p := b.get(attribute(next[0], "href")); !strings.Contains(p.body, got[1]) || strings.Contains(p.body, got[0]) {
		t.Error("the second page does not have the second picture")
	}
}

// A picture of a device outside of the scope is on no page: not by its id, in a comparison, or by its
// fan-out.
func TestScopedGallery(t *testing.T) {
	b := newScopeBench(t)
	v := b.person("looker", operator.Access{Role: fleet.RoleOperator, Scope: "tag:in"})
	own, other := b.sides[inside].snapshot.String(), b.sides[outside].snapshot.String()
	v.get(ui.PicturePath(own)).wantStatus(200)
	for _, at := range []string{ui.PicturePath(other), ui.PicturePath(other) + "?fanout=" + b.sides[inside].fanOut.String(),
		ui.CompareURL(own, other, false), ui.CompareURL(other, own, true), ui.CompareURL(other, "", false),
		ui.FanOutPath(b.sides[outside].fanOut.String(), "pictures"), ui.SnapshotPath(other),
		ui.SnapshotPath(other) + "?download=1", ui.DevicePath(outside, "screen")} {
		v.get(at).wantStatus(404)
	}
	v.get(ui.CompareURL(own, "", false)+"&device="+string(outside)).
		wantText("[role=alert]", "This device has no picture of this kind.")
	p := v.get(ui.PicturePath(own) + "?fanout=" + b.sides[outside].fanOut.String()).wantStatus(200)
	if strings.Contains(p.body, other) {
		t.Error("the neighbours are of the hidden device")
	}
}
