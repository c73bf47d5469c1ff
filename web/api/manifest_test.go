package api

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

// signApp returns the .manifest file of an app, and the key that it is signed with.
func signApp(t *testing.T, app esptest.App) (file []byte, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	data := app.Bytes()
	m, err := espimage.ManifestOf(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := m.Sign(private)
	if err != nil {
		t.Fatal(err)
	}
	file, _ = json.Marshal(signed)
	return file, hex.EncodeToString(public)
}

func TestSignImage(t *testing.T) {
	w := newWorld(t)
	app := esptest.App{Version: "2.5.0"}
	i := w.push(t, app)
	if i.Manifest != nil {
		t.Errorf("an image without a manifest has %+v", i.Manifest)
	}
	file, key := signApp(t, app)
	path := "/images/" + i.SHA256 + "/manifest"
	if r := w.as(t, fleet.RoleViewer, http.MethodPut, path, string(file)); r.status != 403 {
		t.Errorf("a viewer is answered %d", r.status)
	}
	signed := decode[imageView](t, w.as(t, fleet.RoleOperator, http.MethodPut, path, string(file)), 200)
	if m := signed.Manifest; m == nil || m.Key != key || m.Checked || !strings.Contains(m.Manifest, i.SHA256) {
		t.Errorf("signed as %+v", m)
	}
	other, _ := signApp(t, esptest.App{Version: "2.6.0"})
	for body, code := range map[string]string{
		string(other): "manifest_differs", `{"manifest":"x","signature":"x"}`: "manifest_unreadable",
		strings.Replace(string(file), `\"secure_version\":0`, `\"secure_version\":0 `, 1): "manifest_signature",
	} {
		if r := w.as(t, fleet.RoleOperator, http.MethodPut, path, body); r.status != 422 || r.problem(t).Code != code {
			t.Errorf("%.60s: %d %s, want %s", body, r.status, r.body, code)
		}
	}
	nowhere := "/images/" + strings.Repeat("0", 64) + "/manifest"
	if r := w.as(t, fleet.RoleOperator, http.MethodPut, nowhere, string(file)); r.status != 404 {
		t.Errorf("no image: %d %s", r.status, r.body)
	}
}

// TestUploadSignedForm: a form may carry the manifest as a file or as a field.
func TestUploadSignedForm(t *testing.T) {
	w := newWorld(t)
	for _, asFile := range []bool{true, false} {
		app := esptest.App{Version: "2.5.0", ELFOf: map[bool]string{true: "a", false: "b"}[asFile]}
		manifest, key := signApp(t, app)
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		part, _ := form.CreateFormFile("file", "app.bin")
		_, _ = part.Write(app.Bytes())
		if asFile {
			part, _ = form.CreateFormFile("manifest", "app.bin.manifest")
			_, _ = part.Write(manifest)
		} else {
			_ = form.WriteField("manifest", string(manifest))
		}
		_ = form.Close()
		i := decode[imageView](t, w.upload(t, "/images", form.FormDataContentType(), &body), 201)
		if i.Manifest == nil || i.Manifest.Key != key {
			t.Errorf("as a file %v: %+v", asFile, i.Manifest)
		}
	}
}
