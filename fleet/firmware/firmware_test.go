package firmware_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
	"fleetd/fleet/postgres"
	"fleetd/fleet/postgres/pgtest"
	"fleetd/web/i18n"
)

var (
	anAdmin    = fleet.Principal{Kind: fleet.KindOperator, ID: "1", Name: "ada", Role: fleet.RoleAdmin}
	anOperator = fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bo", Role: fleet.RoleOperator}
	aViewer    = fleet.Principal{Kind: fleet.KindOperator, ID: "3", Name: "cy", Role: fleet.RoleViewer}
)

// A firmwareBench is the service with a real database and real files.
type firmwareBench struct {
	*firmware.Service
	t     *testing.T
	store *postgres.Store
	blobs *blobs.Store
	temp  string

	mu      sync.Mutex
	revoked []string // what downloads were asked to revoke
}

func newFirmware(t *testing.T, change ...func(o *firmware.Options)) *firmwareBench {
	t.Helper()
	b := &firmwareBench{t: t, store: postgres.New(pgtest.New(t), postgres.Options{}), temp: t.TempDir()}
	var err error
	if b.blobs, err = blobs.OpenDir(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.blobs.Close() })
	o := firmware.Options{Store: b.store, Blobs: b.blobs, Devices: b.store, TempDir: b.temp,
		Revoked: func(sha256 []string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.revoked = append(b.revoked, sha256...)
		}}
	for _, c := range change {
		c(&o)
	}
	b.Service = firmware.New(o)
	return b
}

func (b *firmwareBench) upload(app []byte, board string) (firmware.Image, bool, error) {
	return b.Upload(b.t.Context(), anOperator, firmware.ImageUpload{Body: bytes.NewReader(app), FileName: "app.bin",
		Board: board})
}

// image uploads an image that must be accepted.
func (b *firmwareBench) image(app esptest.App, board string) firmware.Image {
	b.t.Helper()
	img, created, err := b.upload(app.Bytes(), board)
	if err != nil || !created {
		b.t.Fatalf("created %v, %v", created, err)
	}
	return img
}

func wantCode(t *testing.T, err error, kind error, code string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || !errors.Is(err, kind) || e.Code != code {
		t.Errorf("got %v, want %v with the code %s", err, kind, code)
	}
}

func TestUpload(t *testing.T) {
	b := newFirmware(t)
	app := esptest.App{Chip: "esp32c3", Version: "2.5.1", Size: 300_000, MinRev: 3, MaxRev: 199, SecureVersion: 4}
	elf := app.ELFSHA256()
	data := app.Bytes()
	img, created, err := b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: bytes.NewReader(data),
		FileName: `C:\build\xiao` + "\x1b[31m" + `zhi.bin`, Board: " lamp-1.0 ", Notes: "first\r\n\tline\x00 \u202e"})
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	hash := sha256.Sum256(data)
	want := firmware.Image{SHA256: hex.EncodeToString(hash[:]), Size: int64(len(data)), FileName: "xiao[31mzhi.bin",
		Board: "lamp-1.0",
		Notes: "first\n\tline", Chip: "esp32c3", Version: "2.5.1", Project: "xiaozhi", IDFVersion: "v6.0.2",
		ELFSHA256:  hex.EncodeToString(elf[:]),
		CompiledAt: "Aug  8 2026 08:33:45", SecureVersion: 4, MinChipRev: 3, MaxChipRev: 199, FlashSize: 16 << 20,
		UploadedBy: anOperator,
		CreatedAt:  img.CreatedAt}
	sameImage(t, img, want)
	stored := b.read(img.SHA256)
	if !bytes.Equal(stored, data) {
		t.Errorf("%d bytes are served, %d were uploaded", len(stored), len(data))
	}
	again, created, err := b.upload(data, "other-board")
	if err != nil || created || again.Board != "lamp-1.0" {
		t.Errorf("again: created %v, %+v, %v", created, again, err)
	}
	b.nothingLeft()
}

func (b *firmwareBench) read(sha256 string) []byte {
	b.t.Helper()
	r, err := b.blobs.OpenRange(b.t.Context(), sha256, 0, -1)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}

// nothingLeft: uploads leave no temporary file.
func (b *firmwareBench) nothingLeft() {
	b.t.Helper()
	if left, err := os.ReadDir(b.temp); err != nil || len(left) > 0 {
		b.t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUploadCutsMergedBinary(t *testing.T) {
	b := newFirmware(t)
	app := esptest.App{Chip: "esp32", Size: 50_000}.Bytes()
	img, _, err := b.upload(esptest.Merged(app, esptest.Partitions, 0x1000), "")
	if err != nil || !img.MergedBinary {
		t.Fatalf("%+v, %v", img, err)
	}
	if !bytes.Equal(b.read(img.SHA256), app) {
		t.Error("what is served is not the application alone")
	}
	if same, created, err := b.upload(app, ""); err != nil || created || same.SHA256 != img.SHA256 {
		t.Errorf("the application by itself is another image: %+v, %v", same, err)
	}
}

func TestUploadOfOddVersion(t *testing.T) {
	b := newFirmware(t)
	img := b.image(esptest.App{Version: "v2.4.3"}, "")
	if !strings.Contains(img.NotOfferable, `"v2.4.3"`) || img.Version != "v2.4.3" {
		t.Errorf("%+v", img)
	}
}

func TestUploadWithoutBuildID(t *testing.T) {
	b := newFirmware(t)
	data := esptest.App{NoHash: true}.Bytes()
	id := data[176:208]
	for _, v := range id { // zeros, and the checksum with them
		data[len(data)-1] ^= v
	}
	clear(id)
	if img, _, err := b.upload(data, ""); err != nil || img.ELFSHA256 != "" {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestUploadRefuses(t *testing.T) {
	b := newFirmware(t)
	good := esptest.App{}.Bytes()
	damaged := bytes.Clone(good)
	damaged[350] ^= 1
	for _, tt := range []struct {
		name, code string
		body       io.Reader
		board      string
	}{
		{"nothing", "image_size", strings.NewReader(""), ""},
		{"a page", "image_magic", strings.NewReader("<!doctype html>" + strings.Repeat("x", 400)), ""},
		{"half", "image_truncated", bytes.NewReader(good[:350]), ""},
		{"damaged", "image_checksum", bytes.NewReader(damaged), ""},
		{"bootloader", "image_no_app_descriptor", bytes.NewReader(esptest.Bootloader()), ""},
		{"board in capitals", "invalid_board", bytes.NewReader(good), "Lamp"},
		{"board with a path", "invalid_board", bytes.NewReader(good), "a/b"},
		{"2 GB", "image_too_large", io.LimitReader(endless{}, 2<<30), ""},
		{"endless", "image_too_large", endless{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: tt.body, Board: tt.board})
			wantCode(t, err, fleet.ErrInvalid, tt.code)
		})
	}
	_, _, err := b.Upload(t.Context(), aViewer, firmware.ImageUpload{Body: bytes.NewReader(good)})
	wantCode(t, err, fleet.ErrForbidden, "forbidden")
	broken := errors.New("connection reset")
	_, _, err = b.Upload(t.Context(), anOperator, firmware.ImageUpload{Body: io.MultiReader(bytes.NewReader(good),
		iotest.ErrReader(broken))})
	if !errors.Is(err, broken) {
		t.Errorf("a broken upload: %v", err)
	}
	if page, err := b.Images(t.Context(), firmware.ImageFilter{}); err != nil || len(page.Items) > 0 {
		t.Errorf("on record: %v, %v", page.Items, err)
	}
	b.nothingLeft()
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestUploadMemoryIsFlat(t *testing.T) {
	b := newFirmware(t)
	data := esptest.App{Size: 12 << 20}.Bytes()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := b.upload(data, ""); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("%d KiB allocated for an upload of %d KiB", used>>10, len(data)>>10)
	}
}

func TestUploadSigned(t *testing.T) {
	mine, theirs := signingKey(t), signingKey(t)
	b := newFirmware(t, func(o *firmware.Options) { o.Keys, o.RequireSigned = publicKeys(t, mine), true })
	app := esptest.App{Size: 5000}.Bytes()
	forged := esptest.Sign(app, mine)
	forged[8192+200] ^= 1
	for name, data := range map[string][]byte{"has no Secure Boot": app, "was not given": esptest.Sign(app, theirs),
		"CRC": forged} {
		_, _, err := b.upload(data, "")
		wantCode(t, err, fleet.ErrInvalid, "image_unsigned")
		if refusal, ok := errors.AsType[*fleet.Error](err); !ok || !strings.Contains(i18n.ErrorDetail(refusal), name) {
			t.Errorf("%v; want %q", err, name)
		}
	}
	img, _, err := b.upload(esptest.Sign(app, theirs, mine), "")
	if err != nil {
		t.Fatal(err)
	}
	if s := img.Signatures; len(s) != 2 || !s[0].Valid || s[0].Trusted || !s[1].Trusted || s[1].Scheme != "ecdsa256" {
		t.Errorf("%+v", s)
	}
}

func signingKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func publicKeys(t *testing.T, key *ecdsa.PrivateKey) []espimage.Key {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := espimage.ParseKeys(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
