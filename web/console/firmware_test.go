package console_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/html"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/web/ui"
)

// A file is a file as a browser sends it.
type file struct {
	name string
	data []byte
}

// upload sends files as the form does.
func (b *browser) upload(board, notes string, files ...file) *page {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	_ = w.WriteField("board", board)
	_ = w.WriteField("notes", notes)
	for _, f := range files {
		part, _ := w.CreateFormFile("file", f.name)
		_, _ = part.Write(f.data)
	}
	w.Close()
	return b.do(http.MethodPost, ui.PathImages, w.FormDataContentType(), &body)
}

// staged returns the uploads on a page that wait for confirmation.
func staged(p *page) []string { return inputs(p, "#upload-results", "staged") }

// confirm stores the uploads on a page, for a board, and returns the SHA-256 of the images on the
// next page.
func (b *browser) confirm(p *page, board string) []string {
	b.t.Helper()
	form := url.Values{"then": {ui.UploadThenRelease}, "staged": staged(p)}
	for _, id := range form["staged"] {
		form.Set("board-"+id, board)
	}
	to, err := url.Parse(b.post(ui.PathImages+"/confirm", form).wantRedirect(ui.PathReleaseNew))
	if err != nil {
		b.t.Fatal(err)
	}
	return to.Query()["image"]
}

func inputs(p *page, selector, name string) (values []string) {
	for _, n := range p.find(selector) {
		for d := range n.Descendants() {
			if d.Type == html.ElementNode && d.Data == "input" && attribute(d, "name") == name {
				values = append(values, attribute(d, "value"))
			}
		}
	}
	return values
}

// anImage uploads an image and returns its SHA-256.
func (b *browser) anImage(app esptest.App, board string) string {
	b.t.Helper()
	p := b.upload(board, "", file{"xiaozhi.bin", app.Bytes()}).wantStatus(http.StatusOK)
	sums := b.confirm(p, board)
	if len(sums) != 1 {
		b.t.Fatalf("the upload brought %v: %s", sums, p.text("#upload"))
	}
	return sums[0]
}

func TestUpload(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	b.get("/firmware").wantStatus(200).wantText("#main", "merged-binary.bin").wantText("#main", "fleetd image push")
	good, small := esptest.App{Version: "2.4.3"}.Bytes(), esptest.App{Chip: "esp32c3", Version: "2.4.3"}.Bytes()
	broken := bytes.Clone(good)
	broken[len(broken)-1] ^= 1

	p := b.upload("", "from the lab", file{"xiaozhi.bin", good}, file{`C:\fw\<b>c3</b>.bin`, small},
		file{"broken.bin", broken}, file{"page.html", []byte("<!doctype html>")})
	p.wantStatus(200).wantText("#upload-results", "2.4.3").wantText("#upload-results", "esp32c3").
		wantText("#upload-results", "SHA-256").wantText("#upload-results", "page.html")
	if got := staged(p); len(got) != 2 {
		t.Errorf("%d files wait, want 2: %s", len(got), p.text("#upload-results"))
	}
	if text := b.get("/firmware/images").text("#main"); strings.Contains(text, "2.4.3") {
		t.Error("a file is stored before it is confirmed")
	}
	if sums := b.confirm(p, ""); len(sums) != 2 {
		t.Errorf("%d files were stored, want 2", len(sums))
	}
	if len(p.find("b")) != 0 {
		t.Error("a file name is shown as markup")
	}
	if n := strings.Count(b.get("/firmware/images").text("tbody"), "2.4.3"); n != 2 {
		t.Errorf("%d images are listed, want 2", n)
	}
	again := b.upload("esp-box-3", "", file{"same.bin", good}).wantStatus(200)
	again.wantText("#upload-results", "already uploaded")
	b.get("/firmware/images?chip=esp32c3").wantText("tbody", "esp32c3")

	merged := esptest.Merged(esptest.App{Version: "2.5.0"}.Bytes(), []esptest.Partition{{Label: "ota_0", Type: 0,
		Subtype: 0x10, Offset: 0x20000, Size: 0x100000}}, 0)
	b.upload("esp-box-3", "", file{"merged-binary.bin", merged}).wantStatus(200).wantText("#upload-results",
		"extracted").wantText("#upload-results", "2.5.0")
}

// The page shows the data read from a file before the file is stored, including how stock boards
// read its version. The operator then chooses its board, and may add it to a draft.
func TestUploadAsksFirst(t *testing.T) {
	c := newConsole(t)
	b, other := c.as(fleet.RoleOperator), c.as(fleet.RoleAdmin)
	app := esptest.App{Version: "v1.0"}
	p := b.upload("", "", file{"x.bin", app.Bytes()}).wantStatus(200)
	image, known, err := c.firmware.Inspect(t.Context(), anna, firmware.ImageUpload{Body: bytes.NewReader(app.Bytes())})
	if err != nil || known {
		t.Fatal(image, known, err)
	}
	for _, text := range []string{"v1.0", image.Project, image.IDFVersion, image.SHA256[:16], "2026", "unsigned",
		"crash", "Nothing is stored yet"} {
		p.wantText("#upload", text)
	}
	ids := staged(p)
	if len(ids) != 1 {
		t.Fatalf("%d uploads wait", len(ids))
	}
	confirm := func(b *browser, more ...string) *page {
		form := url.Values{"staged": ids, "then": {"keep"}}
		for i := 0; i+1 < len(more); i += 2 {
			form.Set(more[i], more[i+1])
		}
		return b.post("/firmware/images/confirm", form)
	}
	confirm(other).wantStatus(422).wantText("#upload", "has expired")
	confirm(b, "board-"+ids[0], "NO BOARD!").wantStatus(422).wantText("#upload", "not a valid board name")
	if again := staged(confirm(b, "board-"+ids[0], "NO!")); len(again) != 1 || again[0] != ids[0] {
		t.Errorf("after a refusal %v waits, want %v", again, ids)
	}
	confirm(b, "board-"+ids[0], "esp-box-3").wantRedirect("/firmware/images")
	b.get("/firmware/images").wantText("#flash", "1 image stored").wantText("tbody", "esp-box-3")
	confirm(b).wantStatus(422).wantText("#upload", "has expired")
	b.post("/firmware/images/confirm", url.Values{}).wantStatus(422).wantText("#upload", "at least one file")
	b.upload("", "", file{"x.bin", app.Bytes()}).wantText("#upload-results", "already uploaded")

	draft, err := c.firmware.Create(t.Context(), anna, firmware.ReleaseRequest{Images: []string{image.SHA256},
		Draft: true})
	if err != nil {
		t.Fatal(err)
	}
	ids = staged(b.upload("", "", file{"c3.bin", esptest.App{Chip: "esp32c3", Version: "v1.0"}.Bytes()}))
	b.get("/firmware/images").wantText("#upload", "add them to the draft v1.0")
	confirm(b, "then", draft.ID.String()).wantRedirect(ui.ReleasePath(draft.ID.String()))
	if draft, err = c.firmware.Release(t.Context(), draft.ID); err != nil || len(draft.Images) != 2 {
		t.Errorf("the draft has %d images, %v", len(draft.Images), err)
	}
	for range 20 { // the uploads of one operator that wait are limited
		p = b.upload("", "", file{"x.bin", app.Bytes()}).wantStatus(200)
	}
	ids = staged(p)
	confirm(b).wantRedirect("/firmware/images")
}

func TestUploadRefuses(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	b.upload("", "").wantStatus(422).wantText("#upload", "at least one file")
	b.post("/firmware/images", url.Values{"file": {"x"}}).wantStatus(422).wantText("#upload", "not a valid form with files")
	b.upload("NO BOARD!", "", file{"a.bin", esptest.App{}.Bytes()}).wantStatus(200).wantText("#upload-results",
		"not a valid board name")
	b.upload("", "", file{"empty.bin", nil}).wantStatus(200).wantText("#upload-results", "empty.bin")
	p := b.do(http.MethodPost, "/firmware/images", "multipart/form-data; boundary=x", strings.NewReader("--x\r\nbroken"))
	if p.status < 400 || p.status >= 500 {
		t.Errorf("a broken form: %d", p.status)
	}
	for _, role := range []fleet.Role{fleet.RoleViewer} {
		c.as(role).upload("", "", file{"a.bin", esptest.App{}.Bytes()}).wantStatus(http.StatusForbidden)
	}
	if got, err := c.store.Images(t.Context(), firmware.ImageFilter{}); err != nil || len(got.Items) != 0 {
		t.Errorf("stored %d images, %v", len(got.Items), err)
	}
}

// zeros is an infinite file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A request that is too large is read to its end before the response: otherwise the browser would
// see a broken connection.
func TestUploadTooLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("sends 80 MiB")
	}
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	head := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"disk.img\"\r\n\r\n"
	body := io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, 80<<20), strings.NewReader("\r\n--x--\r\n"))
	b.do(http.MethodPost, "/firmware/images", "multipart/form-data; boundary=x", body).
		wantStatus(200).wantText("#upload-results", "disk.img").wantText("#upload-results", "64 MiB")
}

func TestImagePage(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233", "a085e3112244")
	b := c.as(fleet.RoleAdmin)
	sum := b.anImage(esptest.App{Version: "2.4.3"}, "")
	path := ui.ImagePath(sum)
	p := b.get(path).wantStatus(200).wantText("#main", "any esp32s3 board").wantText("#main", sum[:16]).wantText("#main",
		"v6.0.2")
	p.wantText("#fit", "do not fit") // the devices never reported their flash layout
	if strings.Contains(p.body, "⟦") {
		t.Error("a message is missing")
	}
	b.get(path+"?q=nope:x").wantStatus(200).wantText("#fit", "unknown field")
	b.get(path+"?q=id:a085e3112244&mode=pull&downgrade=1").wantStatus(200).wantText("#fit", "1 device")
	b.get(path + "?q=%00&mode=nope").wantStatus(200)

	b.post(path+"/edit", url.Values{"board": {"bread-compact-wifi"}, "notes": {"a\r\nb"}}).wantRedirect(path)
	b.get(path).wantText("#flash", "Saved").wantText("h1", "2.4.3 for bread-compact-wifi")
	b.post(path+"/edit", url.Values{"board": {"Nope Nope"}, "notes": {"kept"}}).wantStatus(422).wantText("textarea",
		"kept").wantText("#edit", "not a valid board name")
	for _, form := range []url.Values{{"confirm": {"2.4"}, "reason": {"x"}}, {"confirm": {"2.4.3"}, "reason": {" "}}} {
		b.post(path+"/revoke", form).wantStatus(422)
	}
	b.post(path+"/revoke", url.Values{"confirm": {"2.4.3"}, "reason": {"leaks <b>keys</b>"}}).wantRedirect(path)
	p = b.get(path).wantText("#main", "leaks <b>keys</b>").wantText("#main", "Revoked by")
	if len(p.find("b")) != 0 {
		t.Error("a reason is shown as markup")
	}
	b.get("/firmware/images").wantText("tbody", "revoked")

	spare := b.anImage(esptest.App{Version: "2.5.0"}, "")
	b.post(ui.ImagePath(spare, "delete"), nil).wantRedirect("/firmware/images")
	b.get(ui.ImagePath(spare)).wantStatus(404)
	for _, bad := range []string{"x", strings.Repeat("g", 64), strings.Repeat("A", 64), "..%2f..%2fetc"} {
		b.get("/firmware/images/" + bad).wantStatus(404)
	}
}

func TestReleasePages(t *testing.T) {
	c := newConsole(t)
	c.enrol("a085e3112233")
	b := c.as(fleet.RoleAdmin)
	s3, c3 := b.anImage(esptest.App{Version: "2.4.3"}, "bread-compact-wifi"),
		b.anImage(esptest.App{Chip: "esp32c3", Version: "2.4.3"}, "")
	newer := b.anImage(esptest.App{Version: "2.5.0"}, "esp-box-3")
	p := b.get("/firmware/releases/new?image=" + s3 + "&image=" + c3 + "&image=nope").wantStatus(200)
	if got := attribute(p.find("input[name=version]")[0], "value"); got != "2.4.3" {
		t.Errorf("the version offered is %q", got)
	}
	b.post("/firmware/releases", url.Values{"to": {"released"}}).wantStatus(422).wantText("#main", "No image")
	b.post("/firmware/releases", url.Values{"image": {s3, newer}, "notes": {"kept"}, "to": {"released"}}).wantStatus(
		422).wantText("#main", "different versions").wantText("textarea", "kept")
	b.post("/firmware/releases", url.Values{"image": {strings.Repeat("ab", 32)}, "to": {"released"}}).wantStatus(422)

	location := b.post("/firmware/releases", url.Values{"image": {s3}, "notes": {"first\r\nline"},
		"to": {"draft"}}).wantRedirect("/firmware/releases/")
	b.get(location).wantText("#flash", "Draft 2.4.3 saved").wantText("#release-head", "draft")
	b.get(location+"/edit").wantStatus(200).wantText("textarea", "first")
	b.post(location+"/edit", url.Values{"image": {s3, c3}, "version": {"2.4.3"}, "to": {"draft"}}).wantRedirect(location)
	b.get(location).wantText("#main", "any esp32c3 board")
	b.post(location+"/state", url.Values{"to": {"revoked"}, "reason": {"x"}}).wantStatus(422)
	s := b.stream("/events?view=release&id=" + strings.TrimPrefix(location, "/firmware/releases/"))
	b.post(location+"/state", url.Values{"to": {"released"}}).wantRedirect(location)
	s.want("patch", `id="release-head"`, "Start a campaign")
	b.get(location + "/edit").wantRedirect(location) // only drafts can be changed
	b.post(location+"/edit", url.Values{"image": {s3}, "to": {"draft"}}).wantStatus(422).wantText("#main", "Only drafts")
	b.get("/firmware").wantText("tbody", "released").wantText("tbody", "bread-compact-wifi")
	b.get("/firmware?state=draft").wantText("#list", "No releases.")
	b.get(ui.ImagePath(s3)).wantText("#main", "released")
	b.post(ui.ImagePath(s3, "delete"), nil).wantRedirect(ui.ImagePath(s3))
	b.get(ui.ImagePath(s3)).wantText("#flash", "cannot be deleted")

	b.post(location+"/state", url.Values{"to": {"deprecated"}, "reason": {"a newer one is out"}}).wantRedirect(location)
	b.get(location).wantText("#release-head", "a newer one is out")
	b.post(location+"/state", url.Values{"to": {"draft"}}).wantStatus(422)
	b.post(location+"/revoke", url.Values{"reason": {"x"}, "confirm": {"2.4"}}).wantStatus(422)
	b.post(location+"/revoke", url.Values{"reason": {"burns"}, "confirm": {"2.4.3"}}).wantRedirect(location)
	b.get(location).wantText("#release-head", "revoked").wantText("#release-head", "burns")
	b.post(location+"/state", url.Values{"to": {"released"}}).wantRedirect(location)
	b.get(location).wantText("#flash", "cannot become released")
	for _, path := range []string{"/firmware/releases/x", "/firmware/releases/" + uuid.NewString()} {
		b.get(path).wantStatus(404)
	}
}

// The lists show the uploads and changes of others.
func TestFirmwareStream(t *testing.T) {
	c := newConsole(t)
	b := c.as(fleet.RoleOperator)
	first := b.anImage(esptest.App{Version: "2.4.3"}, "")
	s := b.stream("/events?view=firmware")
	b.anImage(esptest.App{Version: "2.4.4"}, "")
	s.want("new", "1")
	b.post(ui.ImagePath(first, "edit"), url.Values{"board": {"esp-box-3"}}).wantStatus(303)
	s.want("patch", `id="image-`+first, "esp-box-3")
	b.post("/firmware/releases", url.Values{"image": {first}, "to": {"draft"}}).wantStatus(303)
	s.want("new", "1")
}

// The lists count the devices that run each image.
func TestRunningIsCounted(t *testing.T) {
	c := newConsole(t)
	app := esptest.App{Version: "2.4.3", ELFOf: "this build"}
	b := c.as(fleet.RoleOperator)
	sum := b.anImage(app, "")
	img, err := c.store.Image(t.Context(), sum)
	if err != nil {
		t.Fatal(err)
	}
	c.bootPoll("a085e3112233", img.ELFSHA256)
	location := b.post("/firmware/releases", url.Values{"image": {sum}, "to": {"released"}}).wantRedirect(
		"/firmware/releases/")
	b.get(location).wantText("#adoption", "100%").wantText("#adoption", "1 of 1")
	b.get(ui.ImagePath(sum)).wantText("#adoption", "100%")

	// A hold excludes a device from campaigns for now; the image still fits it.
	c.bootPoll("a085e3112244", strings.Repeat("0f", 32))
	hold := &fleet.Hold{Reason: "demo", By: anna, Since: time.Now()}
	if err := c.store.SetHold(t.Context(), hold.By, "a085e3112244", hold); err != nil {
		t.Fatal(err)
	}
	b.get(location).wantText("#adoption", "50%").wantText("#adoption", "1 of 2")
	p := b.get("/firmware")
	if got := p.text("tbody"); !strings.Contains(got, "1") {
		t.Errorf("the list reads %q", got)
	}
}

// manifestFile returns the .manifest file of an app.
func manifestFile(t *testing.T, app esptest.App, key ed25519.PrivateKey) file {
	t.Helper()
	data := app.Bytes()
	m, err := espimage.ManifestOf(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := m.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(signed)
	return file{"xiaozhi.bin.manifest", text}
}

// TestManifestOnPages: a .manifest file arrives with its image or later, and the page shows whose
// it is.
func TestManifestOnPages(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := newConsole(t).as(fleet.RoleOperator)
	app, other := esptest.App{Version: "2.4.3"}, esptest.App{Version: "2.5.0"}
	p := b.upload("", "", file{"xiaozhi.bin", app.Bytes()}, manifestFile(t, app, private), manifestFile(t, other,
		private)).wantStatus(200)
	p.wantText("#upload-results", "Manifest of image 2.4.3").wantText("#upload-results", "upload the image first")
	sum := b.confirm(p, "")[0]
	b.get("/firmware/images/"+sum).wantText("#manifest", "not checked").wantText("#manifest",
		hex.EncodeToString(public)[:16])

	sum = b.anImage(other, "")
	address := "/firmware/images/" + sum
	b.get(address).wantText("#manifest", "it then refuses this one")
	attach := func(f file) *page { return b.attach(address+"/manifest", f) }
	attach(manifestFile(t, app, private)).wantStatus(422).wantText("#manifest", "belongs to another image")
	attach(file{"x.manifest", []byte("{}")}).wantStatus(422).wantText("#manifest", "not a .manifest file")
	attach(manifestFile(t, other, private)).wantStatus(http.StatusSeeOther)
	b.get(address).wantText("#manifest", "not checked")
}

// attach sends one file as the form of an image's page does.
func (b *browser) attach(path string, f file) *page {
	b.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	part, _ := w.CreateFormFile("manifest", f.name)
	_, _ = part.Write(f.data)
	w.Close()
	return b.do(http.MethodPost, path, w.FormDataContentType(), &body)
}

// Files beyond a limit are neither stored nor listed one by one, and an endless field is refused.
func TestUploadOfManyFiles(t *testing.T) {
	c := newConsole(t)
	c.operator("root", fleet.RoleAdmin)
	b := c.signIn("root")
	for name, part := range map[string]string{
		"files":  "Content-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\na\r\n",
		"fields": "Content-Disposition: form-data; name=\"x\"\r\n\r\na\r\n"} {
		body := strings.Repeat("--x\r\n"+part, 500) + "--x--\r\n"
		p := b.do(http.MethodPost, "/firmware/images", "multipart/form-data; boundary=x", strings.NewReader(body)).
			wantText("#upload", "at most 100 files")
		if rows := strings.Count(p.body, "a.bin"); rows > 200 {
			t.Errorf("%s: the answer names %d files", name, rows)
		}
	}
}
