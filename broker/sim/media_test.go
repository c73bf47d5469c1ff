package sim

import (
	"bytes"
	"image/jpeg"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"testing"

	"fleetd/fleet/fleettest"
)

// receive reads one upload as a server does.
func receive(t *testing.T, r *http.Request, boundary string) (file []byte, fields map[string]string) {
	t.Helper()
	if len(r.TransferEncoding) != 1 || r.TransferEncoding[0] != "chunked" {
		t.Errorf("transfer encoding %v", r.TransferEncoding)
	}
	fields = map[string]string{}
	parts := multipart.NewReader(r.Body, boundary)
	for {
		p, err := parts.NextPart()
		if err == io.EOF {
			return file, fields
		}
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		data, _ := io.ReadAll(p)
		if p.FileName() != "" {
			file = data
			continue
		}
		fields[p.FormName()] = string(data)
	}
}

func TestSnapshotShowsTheState(t *testing.T) {
	b := newBackend(t)
	var pictures [][]byte
	b.post = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Device-Id") != "" || r.Header.Get("User-Agent") != "" {
			t.Errorf("a snapshot says who it is from: %v", r.Header)
		}
		picture, _ := receive(t, r, snapshotBoundary)
		pictures = append(pictures, picture)
		_, _ = io.WriteString(w, "ok")
	}
	f := b.start(Options{Boards: []string{"esp-box-3"}})
	d := f.Device(0)
	b.connected(d)
	shoot := func(id int) []byte {
		if got := text0(b.ask(d, toolCall(id, "self.screen.snapshot", `{"url":"`+b.http.URL+`/u/1"}`))); got != "true" {
			t.Fatalf("snapshot: %s", got)
		}
		picture := pictures[len(pictures)-1]
		img, err := jpeg.Decode(bytes.NewReader(picture))
		if err != nil {
			t.Fatal(err)
		}
		if s := img.Bounds().Size(); s.X != 320 || s.Y != 240 {
			t.Errorf("picture is %v", s)
		}
		return picture
	}
	light := shoot(1)
	b.ask(d, toolCall(2, "self.screen.set_theme", `{"theme":"dark"}`))
	b.send(d, 0, `{"type":"alert","status":"Notice","message":"Voice is not available here","emotion":"neutral"}`)
	dark := shoot(3)
	img, _ := jpeg.Decode(bytes.NewReader(dark))
	if r, _, _, _ := img.At(4, 120).RGBA(); r>>8 > 0x40 {
		t.Error("the dark theme is not dark")
	}
	if dir := os.Getenv("SIM_PICTURES"); dir != "" { // for a person to look at
		_ = os.WriteFile(dir+"/light.jpg", light, 0o644)
		_ = os.WriteFile(dir+"/dark.jpg", dark, 0o644)
	}
}

// TestScreens draws every board that has a screen; with SIM_PICTURES it keeps the pictures.
func TestScreens(t *testing.T) {
	for _, name := range BoardNames() {
		d := oneDevice(t, Options{Boards: []string{name}})
		d.state.Lamp, d.state.Message, d.state.Volume = true,
			"Hello, a text that is longer than a line of the screen has room for", 100
		data, err := d.screenshot(80)
		if err != nil {
			t.Fatal(err)
		}
		img, err := jpeg.Decode(bytes.NewReader(data))
		if err != nil || img.Bounds().Dx() != d.board.screen.width {
			t.Errorf("%s: %v", name, err)
		}
		if dir := os.Getenv("SIM_PICTURES"); dir != "" {
			_ = os.WriteFile(dir+"/"+name+".jpg", data, 0o644)
		}
	}
}

func TestUploadAndPreviewErrors(t *testing.T) {
	b := newBackend(t)
	b.files["/p.jpg"] = []byte("a picture")
	b.post = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "/u/1", http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	f := b.start(Options{Boards: []string{"esp-box-3"}})
	d := f.Device(0)
	b.connected(d)
	closed := "http://127.0.0.1:1/x"
	tests := []struct{ tool, url, want string }{
		{"self.screen.snapshot", b.http.URL + "/u/1", "error: Unexpected status code: 201"},
		{"self.screen.snapshot", b.http.URL + "/redirect", "error: Unexpected status code: 307"},
		{"self.screen.snapshot", closed, "error: Failed to open URL: " + closed},
		{"self.screen.preview_image", b.http.URL + "/p.jpg", "true"},
		{"self.screen.preview_image", b.http.URL + "/none", "error: Unexpected status code: 404"},
	}
	for i, tt := range tests {
		if got := text0(b.ask(d, toolCall(i, tt.tool, `{"url":"`+tt.url+`"}`))); got != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.tool, tt.url, got, tt.want)
		}
	}
}

func TestPhotoGoesToVision(t *testing.T) {
	b := newBackend(t)
	b.post = func(w http.ResponseWriter, r *http.Request) {
		picture, fields := receive(t, r, cameraBoundary)
		if _, err := jpeg.Decode(bytes.NewReader(picture)); err != nil {
			t.Error(err)
		}
		if fields["question"] != "what?" || r.Header.Get("Authorization") != "Bearer tok" || r.Header.Get("Device-Id") == "" {
			t.Errorf("fields %v, header %v", fields, r.Header)
		}
		_, _ = io.WriteString(w, `{"success":true}`)
	}
	f := b.start(Options{Boards: []string{"custom-cam-s3"}})
	d := f.Device(0)
	b.connected(d)
	photo := toolCall(1, "self.camera.take_photo", `{"question":"what?"}`)
	if got := text0(b.ask(d, photo)); got != "error: Image explain URL or token is not set" {
		t.Errorf("without a vision URL: %s", got)
	}
	b.ask(d, request(2, "initialize", `{"capabilities":{"vision":{"url":"`+b.http.URL+`/v","token":"tok"}}}`))
	if got := text0(b.ask(d, photo)); got != `{"success":true}` {
		t.Errorf("got %s", got)
	}
	if got := b.ask(d, toolCall(3, "self.camera.capture", `{}`)); !strings.Contains(got,
		`"type":"image","image":"{\"type\":\"image\"`) {
		t.Errorf("capture: %.200s", got)
	}
}

func TestAssetsAreFetchedOnceAtTheNextBoot(t *testing.T) {
	b := newBackend(t)
	b.files["/assets.bin"] = bytes.Repeat([]byte("x"), 5000)
	f := b.start(Options{Boards: []string{"esp-box-3"}, TimeScale: 0.01})
	d := f.Device(0)
	b.connected(d)
	b.ask(d, toolCall(1, "self.assets.set_download_url", `{"url":"`+b.http.URL+`/assets.bin"}`))
	for boot := range 2 {
		b.send(d, 0, toolCall(2, "self.reboot", `{}`))
		fleettest.Eventually(t, "reconnect", func() bool { return f.Stats().Connects == int64(boot+2) })
		b.connected(d)
	}
	if s := f.Stats(); s.Downloads != 1 || s.DownloadedBytes != 5000 {
		t.Errorf("%+v", s)
	}
}
