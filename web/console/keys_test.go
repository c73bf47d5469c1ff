package console_test

import (
	"bytes"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// uploadList sends a list as the form on the page does.
func (b *browser) uploadList(list string) *page {
	b.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "list.csv")
	if err == nil {
		_, err = part.Write([]byte(list))
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do("POST", "/settings/serials", form.FormDataContentType(), &body)
}

func TestSerialNumbersPage(t *testing.T) {
	c := newConsole(t)
	admin := c.as(fleet.RoleAdmin)
	key := strings.Repeat("1a", 32)
	p := admin.uploadList("serial,key\nSN-1," + key + "\nSN-2,secret\n<b>," + key + "\n").wantStatus(422)
	p.wantText("#main", "Line 3: the key is not 64 hex digits").wantText("#main", "Line 4:")
	if strings.Contains(p.body, "secret") || strings.Contains(p.body, key) {
		t.Error("the page repeats the list")
	}
	admin.uploadList("").wantStatus(422)
	admin.uploadList("SN-1," + key + "\nSN-2," + key).wantRedirect("/settings/serials")
	p = admin.get("/settings/serials").wantText("#main", "SN-1").wantText("#main", "2 serial numbers were added")
	if strings.Contains(p.body, key) {
		t.Error("the page shows a key")
	}
	admin.post("/settings/serials/SN-2/delete", nil).wantRedirect("/settings/serials")
	admin.post("/settings/serials/SN-2/delete", nil).wantStatus(404)
	viewer := c.as(fleet.RoleViewer)
	viewer.get("/settings/serials?state=unused").wantStatus(200).wantText("#main", "SN-1")
	if p := viewer.get("/settings/serials?state=bound").wantStatus(200); strings.Contains(p.text("ul[class=queue]"),
		"SN-1") {
		t.Error("an unproved serial number among the proved")
	}
	viewer.get("/settings/serials?cursor=no%20cursor").wantStatus(422)
	if strings.Contains(c.logged.String(), key) {
		t.Error("a key is in the log")
	}
}

func TestSigningKeyPage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	admin := c.as(fleet.RoleAdmin)
	admin.get("/settings/keys").wantText("#main", "The key has never been rotated.")
	admin.post("/settings/keys/start", url.Values{"confirm": {"yes"}}).wantStatus(422)
	admin.post("/settings/keys/finish", url.Values{"confirm": {"0"}}).wantStatus(409)
	admin.post("/settings/keys/start", url.Values{"confirm": {"rotate"}}).wantRedirect("/settings/keys")
	admin.get("/settings/keys").wantText("#main", "Rotation in progress").wantText("#main", "a0:85:e3:11:22:44")
	admin.post("/settings/keys/start", url.Values{"confirm": {"rotate"}}).wantStatus(409)
	admin.post("/settings/keys/finish", url.Values{"confirm": {"1"}}).wantStatus(409).wantText("#main",
		"2 devices still use the other key")
	admin.post("/settings/keys/restart", nil).wantStatus(422)
	admin.post("/settings/keys/abort", url.Values{"confirm": {"abort"}}).wantRedirect("/settings/keys")
	admin.post("/settings/keys/abort", url.Values{"confirm": {"abort"}}).wantStatus(409)
	admin.post("/settings/keys/finish", url.Values{"confirm": {"0"}}).wantRedirect("/settings/keys")
	c.as(fleet.RoleViewer).get("/settings/keys?group=not_seen").wantStatus(200).wantText("#main", "Rotation aborted")
	admin.post("/settings/keys/start", url.Values{"confirm": {"rotate"}}).wantRedirect("/settings/keys")
	admin.post("/settings/keys/finish", url.Values{"confirm": {"2"}}).wantRedirect("/settings/keys")
	if r := c.keys.Rotation(); r.State != enrolment.RotationFinished || r.ToGeneration != 2 || r.LeftBehind != 2 {
		t.Errorf("%+v", r)
	}
}
