package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"io"
	"path"
	"testing"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/picture"
	"fleetd/web/ui"
)

// testPNG draws a small picture.
func testPNG(t testing.TB) []byte {
	img := image.NewRGBA(image.Rect(0, 0, 32, 24))
	img.Set(1, 1, color.White)
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Error(err)
	}
	return b.Bytes()
}

// upload uploads a picture to its one-time address, as a device does.
func (c *site) upload(ctx context.Context, url string, picture []byte) error {
	_, err := c.snapshots.Receive(ctx, path.Base(url), func() (io.Reader, error) { return bytes.NewReader(picture), nil })
	return err
}

// A camera's picture is shown with its call, not as the device's screen.
func TestPhotoOnTheCallsPage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	var photo picture.Photo
	c.connect("a085e3112233", func(ctx context.Context, _ string, _ json.RawMessage) (fleet.Answer, error) {
		var err error
		photo, err = c.snapshots.Photo(ctx, "a085e3112233", "What is <i>this</i>?", bytes.NewReader(testPNG(t)))
		return fleettest.Text("kept"), err
	})
	b := c.as(fleet.RoleOperator)
	b.post(ui.ToolPath("a085e3112233", "self.get_device_status"), nil)
	if photo.Snapshot.Call == uuid.Nil {
		t.Fatalf("kept without a call: %+v", photo.Snapshot)
	}
	p := b.get(ui.CallPath(photo.Snapshot.Call.String()))
	src := ui.SnapshotPath(photo.Snapshot.ID.String())
	if len(p.find("img[src="+src+"]")) != 1 {
		t.Errorf("the call's page does not show %s", src)
	}
	p.wantText("figcaption", "Question: What is <i>this</i>?")
	b.get(src).wantStatus(200)
	if shot := b.get(dev).find("figure[id=snapshot]"); len(shot) != 0 {
		t.Error("the device's page shows it as the latest picture of the screen")
	}
	if len(b.get(dev+"/screen").find("img[src="+src+"]")) != 1 {
		t.Error("the device's pictures do not have it")
	}
}
