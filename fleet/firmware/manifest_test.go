package firmware_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

// releaseKeys are a key pair that signs manifests.
func releaseKeys(t *testing.T) (ed25519.PrivateKey, ed25519.PublicKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return private, public
}

// manifestOf returns the .manifest file of an app, changed before it is signed.
func manifestOf(t *testing.T, app []byte, key ed25519.PrivateKey, change ...func(*espimage.Manifest)) []byte {
	t.Helper()
	m, err := espimage.ManifestOf(bytes.NewReader(app), int64(len(app)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(&m)
	}
	signed, err := m.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	file, _ := json.Marshal(signed)
	return file
}

func TestUploadWithManifest(t *testing.T) {
	private, public := releaseKeys(t)
	app := esptest.App{Version: "2.5.0"}.Bytes()
	for name, keys := range map[string][]ed25519.PublicKey{"checked": {public}, "not checked": nil} {
		b := newFirmware(t, func(o *firmware.Options) { o.ManifestKeys = keys })
		file := manifestOf(t, app, private)
		img, created, err := b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: bytes.NewReader(app),
			Manifest: file})
		var want espimage.SignedManifest
		_ = json.Unmarshal(file, &want)
		if err != nil || !created || img.Manifest != want.Text || img.ManifestSignature != want.Signature ||
			img.ManifestKey != hex.EncodeToString(public) || img.ManifestChecked != (keys != nil) {
			t.Errorf("%s: created %v, %v: %+v", name, created, err, img)
		}
	}
}

func TestManifestLater(t *testing.T) {
	private, public := releaseKeys(t)
	b := newFirmware(t, func(o *firmware.Options) { o.ManifestKeys = []ed25519.PublicKey{public} })
	app := esptest.App{Version: "2.5.0"}
	img := b.image(app, "")
	signed, err := b.SetManifest(t.Context(), anOperator, img.SHA256, manifestOf(t, app.Bytes(), private))
	if err != nil || !signed.ManifestChecked || signed.Manifest == "" {
		t.Fatalf("%v: %+v", err, signed)
	}
	later := manifestOf(t, app.Bytes(), private, func(m *espimage.Manifest) { m.NotBefore = 1798761600000 })
	again, created, err := b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: bytes.NewReader(app.Bytes()),
		Manifest: later})
	if err != nil || created || again.Manifest == signed.Manifest {
		t.Errorf("the same image with another manifest: created %v, %v, %s", created, err, again.Manifest)
	}
	kept, _, err := b.upload(app.Bytes(), "")
	if err != nil || kept.Manifest != again.Manifest {
		t.Errorf("an upload without a manifest took it away: %v, %q", err, kept.Manifest)
	}
	_, err = b.SetManifest(t.Context(), aViewer, img.SHA256, later)
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
}

func TestManifestRefused(t *testing.T) {
	private, public := releaseKeys(t)
	stranger, _ := releaseKeys(t)
	app := esptest.App{Version: "2.5.0", Project: "demo", SecureVersion: 2}
	b := newFirmware(t, func(o *firmware.Options) { o.ManifestKeys = []ed25519.PublicKey{public} })
	img := b.image(app, "")
	of := func(change func(*espimage.Manifest)) []byte { return manifestOf(t, app.Bytes(), private, change) }
	tests := map[string]struct {
		file []byte
		code string
	}{
		"of another image":   {manifestOf(t, esptest.App{Version: "2.6.0"}.Bytes(), private), "manifest_differs"},
		"another size":       {of(func(m *espimage.Manifest) { m.Size++ }), "manifest_differs"},
		"another chip":       {of(func(m *espimage.Manifest) { m.Chip = 5 }), "manifest_differs"},
		"another project":    {of(func(m *espimage.Manifest) { m.Project = "evil" }), "manifest_differs"},
		"another version":    {of(func(m *espimage.Manifest) { m.Version = "9.9.9" }), "manifest_differs"},
		"an older fuse":      {of(func(m *espimage.Manifest) { m.SecureVersion = 1 }), "manifest_differs"},
		"of a strange key":   {manifestOf(t, app.Bytes(), stranger), "manifest_signature"},
		"no manifest at all": {[]byte("{}"), "manifest_unreadable"},
		"empty":              {nil, "manifest_unreadable"},
	}
	for name, tt := range tests {
		_, err := b.SetManifest(t.Context(), anOperator, img.SHA256, tt.file)
		wantCode(t, err, fleet.ErrInvalid, tt.code)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	if now, err := b.Image(t.Context(), img.SHA256); err != nil || now.Manifest != "" {
		t.Errorf("a refused manifest was kept: %v, %q", err, now.Manifest)
	}
	other := esptest.App{Version: "2.7.0"}.Bytes()
	_, _, err := b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: bytes.NewReader(other),
		Manifest: of(func(*espimage.Manifest) {})})
	wantCode(t, err, fleet.ErrInvalid, "manifest_differs")
	if page, err := b.Images(t.Context(), firmware.ImageFilter{}); err != nil || len(page.Items) != 1 {
		t.Errorf("%d images on record, %v: one was refused with its manifest", len(page.Items), err)
	}
}

// TestManifestChangedWithoutKeys: even without keys, fleetd detects that a file was changed if
// the file names its signing key.
func TestManifestChangedWithoutKeys(t *testing.T) {
	private, _ := releaseKeys(t)
	b := newFirmware(t)
	app := esptest.App{Version: "2.5.0"}
	img := b.image(app, "")
	file := bytes.Replace(manifestOf(t, app.Bytes(), private), []byte(`\"secure_version\":0`),
		[]byte(`\"secure_version\":0 `), 1)
	_, err := b.SetManifest(t.Context(), anOperator, img.SHA256, file)
	wantCode(t, err, fleet.ErrInvalid, "manifest_signature")
}
