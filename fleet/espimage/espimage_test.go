package espimage_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

type vector struct {
	Name   string
	Image  []byte `json:"image_base64"`
	Expect struct {
		Valid   bool    `json:"valid_app"`
		ChipID  *uint16 `json:"chip_id"`
		Version string
		Project string
		IDF     string
		ELF     string `json:"elf_sha256"`
		Size    int64
		Reason  espimage.Reason
		Offer   *bool `json:"offerable"`
	}
}

func vectors(t testing.TB) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/app_image.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []vector }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 13 {
		t.Fatalf("%d vectors", len(file.Cases))
	}
	return file.Cases
}

func parse(b []byte, keys ...espimage.Key) (*espimage.Image, error) {
	return espimage.Parse(bytes.NewReader(b), int64(len(b)), keys...)
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			img, err := parse(v.Image)
			if !v.Expect.Valid {
				wantFault(t, err, v.Expect.Reason)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			v.check(t, img)
		})
	}
}

func (v vector) check(t *testing.T, img *espimage.Image) {
	t.Helper()
	e := v.Expect
	if img.Descriptor.Version != e.Version {
		t.Errorf("version %q, want %q", img.Descriptor.Version, e.Version)
	}
	if offerable := espimage.LintVersion(img.Descriptor.Version) == nil; offerable != (e.Offer == nil || *e.Offer) {
		t.Errorf("offerable: %v", offerable)
	}
	if e.ChipID == nil {
		return
	}
	got := []any{img.Header.ChipID, img.Descriptor.Project, img.Descriptor.IDFVersion, img.Descriptor.ELFSHA256, img.Size}
	if diff := cmp.Diff([]any{*e.ChipID, e.Project, e.IDF, e.ELF, e.Size}, got); diff != "" {
		t.Error(diff)
	}
}

var caseName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func wantFault(t *testing.T, err error, reason espimage.Reason) *espimage.Fault {
	t.Helper()
	var f *espimage.Fault
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a fault: %s", err, reason)
	}
	if f.Reason != reason || !caseName.MatchString(f.Case) {
		t.Errorf("got %v, want %q", f, reason)
	}
	return f
}

// TestEveryField sets each field of the format to a distinct value.
func TestEveryField(t *testing.T) {
	b := esptest.App{Chip: "esp32p4", MinRev: 1, MaxRev: 199, SecureVersion: 7, NoHash: true, FlashSize: 7,
		Version: strings.Repeat("9", 32), Time: "12:34:56", Date: "Jan  1 2027"}.Bytes()
	b[2], b[3], b[8], b[9], b[10], b[11], b[14] = 3, 0x72, 0xAA, 1, 2, 3, 4
	binary.LittleEndian.PutUint32(b[4:], 0x12345678)
	img, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	header := espimage.Header{SegmentCount: 2, SPIMode: 3, SPISpeed: 2, SPISize: 7, FlashSize: 128 << 20,
		EntryAddr: 0x12345678,
		WPPin:     0xAA, SPIPinDrv: [3]uint8{1, 2, 3}, ChipID: 0x12, LegacyChipRev: 4, MinChipRev: 1, MaxChipRev: 199}
	if diff := cmp.Diff(header, img.Header); diff != "" {
		t.Error(diff)
	}
	elf := esptest.App{Chip: "esp32p4", Version: strings.Repeat("9", 32)}.ELFSHA256()
	descriptor := espimage.Descriptor{SecureVersion: 7, Version: strings.Repeat("9", 32), Project: "xiaozhi",
		Time: "12:34:56",
		Date: "Jan  1 2027", IDFVersion: "v6.0.2", ELFSHA256: hex.EncodeToString(elf[:]), MaxBlockRev: 199, MMUPageSize: 16,
		SPIFlashMode: 2}
	if diff := cmp.Diff(descriptor, img.Descriptor); diff != "" {
		t.Error(diff)
	}
	segments := []espimage.Segment{{LoadAddr: 0x3C000020, Offset: 32, Size: 288}, {LoadAddr: 0x3C010020, Offset: 328,
		Size: 32}}
	if diff := cmp.Diff(segments, img.Segments); diff != "" {
		t.Error(diff)
	}
	if img.Chip != "esp32p4" || img.Length != 368 || img.Checksum != b[367] || img.SHA256 != "" || img.Merged != nil {
		t.Errorf("%+v", img)
	}
}

func TestRevisionsWithoutLimit(t *testing.T) {
	b := esptest.App{MinRev: 65535, NoHash: true}.Bytes()
	b[17], b[18] = 0, 0 // ESP-IDF before 4.4 omitted the field
	img, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if img.Header.MinChipRev != 0 || img.Header.MaxChipRev != 65535 {
		t.Errorf("min %d, max %d", img.Header.MinChipRev, img.Header.MaxChipRev)
	}
}

// TestEveryByteCounts changes each byte of an image in turn: the hash detects every change.
func TestEveryByteCounts(t *testing.T) {
	good := esptest.App{}.Bytes()
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, err := parse(bad); err == nil {
			t.Errorf("byte %d changed, and Parse returned no error", i)
		}
	}
}

func TestEveryCutIsSeen(t *testing.T) {
	good := esptest.App{Size: 2000}.Bytes()
	for n := range good {
		want := espimage.ReasonTruncated
		if n < 288 {
			want = espimage.ReasonSize
		}
		_, err := parse(good[:n])
		wantFault(t, err, want)
	}
}

func TestFaultsOfSegments(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"none":      func(b []byte) { b[1] = 0 },
		"seventeen": func(b []byte) { b[1] = 17 },
		"odd size":  func(b []byte) { b[28]++ },
		"16 MB":     func(b []byte) { binary.LittleEndian.PutUint32(b[28:], 16<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			b := esptest.App{}.Bytes()
			change(b)
			_, err := parse(b)
			wantFault(t, err, espimage.ReasonSegments)
		})
	}
}

func TestForeignFiles(t *testing.T) {
	pad := strings.Repeat("x", 400)
	for _, tt := range []struct{ name, file, found, which string }{
		{"elf", "\x7fELF\x01\x01\x01" + pad, "elf", "elf"},
		{"gzip", "\x1f\x8b\x08\x00", "gzip", "gzip"},
		{"zip", "PK\x03\x04" + pad, "zip", "zip"},
		{"uf2", "UF2\nWQ]\x9e" + pad, "uf2", "uf2"},
		{"html", "<!DOCTYPE html><title>Sign in</title>" + pad, "html", "html"},
		{"html after a mark", "\xef\xbb\xbf\r\n <HTML>", "html", "html"},
		{"json", `{"message":"Not Found"}`, "json", "json"},
		{"partition table", string(esptest.Table(esptest.Partitions)), "partition_table", "partition_table"},
		{"erased", strings.Repeat("\xff", 70000), "erased", "erased"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse([]byte(tt.file))
			f := wantFault(t, err, espimage.ReasonMagic)
			if f.Found() != tt.found || f.Case != tt.which {
				t.Errorf("found %q: %v", f.Found(), f)
			}
		})
	}
}

func TestBootloaderIsNamed(t *testing.T) {
	_, err := parse(esptest.Bootloader())
	if f := wantFault(t, err, espimage.ReasonDescriptor); f.Case != "bootloader" {
		t.Error(f)
	}
}

// TestReaderFails checks that a disk error is not reported as a fault of the image.
func TestReaderFails(t *testing.T) {
	b := esptest.App{Size: 100_000}.Bytes()
	var f *espimage.Fault
	for _, short := range []int64{10, 300, 50_000} {
		_, err := espimage.Parse(io.NewSectionReader(bytes.NewReader(b), 0, short), int64(len(b)))
		if err == nil || errors.As(err, &f) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("reader with %d bytes: %v", short, err)
		}
	}
}

// TestMemory checks that a large image is read in constant memory.
func TestMemory(t *testing.T) {
	app := esptest.App{Size: 15 << 20}.Bytes()
	for _, n := range []int{1 << 20, 15 << 20} {
		b := app
		if n < len(app) {
			b = esptest.App{Size: n}.Bytes()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := parse(b); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 256<<10 {
			t.Errorf("%d bytes allocated for an image of %d", used, len(b))
		}
	}
}

func TestLintVersion(t *testing.T) {
	for version, good := range map[string]bool{
		"2.4.3": true, "0": true, "1.2.3.4.5.6": true, "999999999.999999999": true,
		"": false, "v2.4.3": false, "2.4.3-rc1": false, "2..4": false, "2.4.": false, ".2": false, "2147483648": false,
		"20260808120000": false, "1.2.3.4.5.6.7": false, "2.4.3\n": false, "latest": false, "2.4 ": false, "２.4": false,
	} {
		if err := espimage.LintVersion(version); (err == nil) != good {
			t.Errorf("%q: %v", version, err)
		}
	}
}
