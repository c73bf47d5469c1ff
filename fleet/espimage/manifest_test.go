package espimage_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

// A key from RFC 8032, section 7.1, so that the signature can be reproduced elsewhere.
var releaseKey = ed25519.NewKeyFromSeed(mustHex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))

func mustHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func manifestFile(t *testing.T, s espimage.SignedManifest) []byte {
	t.Helper()
	file, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestManifestOfImage(t *testing.T) {
	app := esptest.App{Version: "2.5.0", Project: "fleet_unit", SecureVersion: 3}.Bytes()
	sum := sha256.Sum256(app)
	m, err := espimage.ManifestOf(bytes.NewReader(app), int64(len(app)))
	want := espimage.Manifest{Project: "fleet_unit", Version: "2.5.0", Chip: 9, Size: int64(len(app)),
		SHA256: hex.EncodeToString(sum[:]), SecureVersion: 3}
	if d := cmp.Diff(want, m); d != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, d)
	}
	if _, err := espimage.ManifestOf(bytes.NewReader(app[:100]), 100); err == nil {
		t.Error("a manifest of half an image")
	}
}

// TestManifestForm compares the text with the names that the firmware reads.
func TestManifestForm(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	signed, err := espimage.Manifest{Project: "fleet_unit", Version: "2.5.0", Chip: 9, Size: 4096, SHA256: sum,
		SecureVersion: 3, NotBefore: 1798761600000}.Sign(releaseKey)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"project":"fleet_unit","version":"2.5.0","chip":9,"size":4096,"sha256":"` + sum +
		`","secure_version":3,"not_before":1798761600000}`
	if signed.Text != want || len(signed.Signature) != 88 ||
		signed.Key != "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a" {
		t.Errorf("signed %+v, want the text %s", signed, want)
	}
	read, m, err := espimage.ReadSignedManifest(manifestFile(t, signed))
	if err != nil || read != signed || m.NotBefore != 1798761600000 || espimage.ManifestBegins(
		read.Text).UnixMilli() != m.NotBefore || !read.Holds(read.NamedKey()) {
		t.Errorf("read back %+v, %+v, %v", read, m, err)
	}
	back, err := espimage.Manifest{Project: "fleet_unit", Version: "2.4.0", Chip: 9, Size: 4096, SHA256: sum,
		RollbackFrom: "2.5.0"}.Sign(releaseKey)
	if err != nil || !strings.HasSuffix(back.Text, `,"secure_version":0,"rollback_from":"2.5.0"}`) {
		t.Errorf("with a permission to go back: %s, %v", back.Text, err)
	}
	if _, m, err := espimage.ReadSignedManifest(manifestFile(t, back)); err != nil || m.RollbackFrom != "2.5.0" {
		t.Errorf("read back %+v, %v", m, err)
	}
	read.Text = strings.Replace(read.Text, "4096", "4097", 1)
	if read.Holds(releaseKey.Public().(ed25519.PublicKey)) {
		t.Error("a changed manifest passes")
	}
}

func TestReadSignedManifestRefuses(t *testing.T) {
	good, err := espimage.Manifest{Chip: 9, Size: 1, SHA256: strings.Repeat("ab", 32)}.Sign(releaseKey)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*espimage.SignedManifest)) []byte {
		s := good
		change(&s)
		return manifestFile(t, s)
	}
	tests := map[string][]byte{
		"nothing":         nil,
		"no JSON":         []byte("not JSON"),
		"no manifest":     []byte(`{"signature":"x"}`),
		"huge":            bytes.Repeat([]byte(" "), 5<<10),
		"long manifest":   with(func(s *espimage.SignedManifest) { s.Text += strings.Repeat(" ", 1100) }),
		"text no JSON":    with(func(s *espimage.SignedManifest) { s.Text = "x" }),
		"short signature": with(func(s *espimage.SignedManifest) { s.Signature = "YWJj" }),
		"no base64":       with(func(s *espimage.SignedManifest) { s.Signature = strings.Repeat("*", 88) }),
		"no hash":         with(func(s *espimage.SignedManifest) { s.Text = `{"chip":9,"size":1}` }),
		"no size": with(func(s *espimage.SignedManifest) {
			s.Text = strings.Replace(s.Text, `"size":1`, `"size":0`,
				1)
		}),
	}
	for name, file := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := espimage.ReadSignedManifest(file)
			wantFault(t, err, espimage.ReasonManifest)
		})
	}
	if _, _, err := espimage.ReadSignedManifest(manifestFile(t, good)); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

func FuzzReadSignedManifest(f *testing.F) {
	f.Add([]byte(`{"manifest":"{\"chip\":9,\"size\":1,\"sha256\":\"\"}","signature":"","key":"00"}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, m, err := espimage.ReadSignedManifest(file)
		if err == nil && (len(s.Text) > 1024 || m.Size <= 0 || len(m.SHA256) != 64 || len(s.Signature) != 88) {
			t.Errorf("took %+v", s)
		}
		s.Holds(s.NamedKey())
	})
}

func TestReleaseKeys(t *testing.T) {
	private, public, err := espimage.NewReleaseKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := espimage.ParseReleaseSecret(private)
	if err != nil {
		t.Fatal(err)
	}
	_, more, _ := espimage.NewReleaseKey()
	keys, err := espimage.ParseReleaseKeys(append(public, more...))
	if err != nil || len(keys) != 2 || !keys[0].Equal(secret.Public()) {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	for name, text := range map[string][]byte{"private": private, "nothing": nil,
		"noise": []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")} {
		if _, err := espimage.ParseReleaseKeys(text); err == nil {
			t.Errorf("%s: taken as a public key", name)
		}
	}
	if _, err := espimage.ParseReleaseSecret(public); err == nil {
		t.Error("a public key taken as a private one")
	}
}
