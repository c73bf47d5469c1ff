package espimage_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

func TestMergedBinary(t *testing.T) {
	app := esptest.App{Version: "2.5.0", Size: 100_000}.Bytes()
	for name, at := range map[string]int{"S3": 0, "ESP32": 0x1000, "P4": 0x2000} {
		t.Run(name, func(t *testing.T) {
			merged := esptest.Merged(app, esptest.Partitions, at)
			img, err := parse(merged)
			if err != nil {
				t.Fatal(err)
			}
			if img.Merged == nil || img.Merged.Label != "ota_0" || img.Descriptor.Version != "2.5.0" {
				t.Fatalf("%+v", img)
			}
			if cut := merged[img.Offset : img.Offset+img.Size]; !bytes.Equal(cut, app) {
				t.Errorf("cut out %d bytes from %#x, want the app's %d", len(cut), img.Offset, len(app))
			}
		})
	}
}

func TestMergedBinaryKeepsItsSignature(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	app := esptest.Sign(esptest.App{}.Bytes(), key)
	merged := esptest.Merged(app, esptest.Partitions, 0)
	img, err := parse(merged)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(merged[img.Offset:img.Offset+img.Size], app) || len(img.Signatures) != 1 || !img.Signatures[0].Valid {
		t.Errorf("%+v", img)
	}
}

func TestMergedBinaryWithTableElsewhere(t *testing.T) {
	app := esptest.App{}.Bytes()
	merged := esptest.Merged(app, esptest.Partitions, 0)
	copy(merged[0x10000:], merged[0x8000:0x9000])
	copy(merged[0x8000:], bytes.Repeat([]byte{0xFF}, 0x1000))
	img, err := parse(merged)
	if err != nil || img.Offset != 0x20000 {
		t.Errorf("%+v, %v", img, err)
	}
}

// TestAppWithTableInside parses an application with data that look like a partition table.
func TestAppWithTableInside(t *testing.T) {
	b := esptest.App{Size: 200_000, NoHash: true}.Bytes()
	old := bytes.Clone(b[0x8000:0x8C00])
	table := esptest.Table(esptest.Partitions)
	copy(b[0x8000:], table)
	for i := range old { // keep the checksum
		b[len(b)-1] ^= old[i] ^ table[i]
	}
	img, err := parse(b)
	if err != nil || img.Merged != nil || img.Size != int64(len(b)) {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestMergedBinaryFaults(t *testing.T) {
	app := esptest.App{Size: 100_000}.Bytes()
	data := slices.DeleteFunc(slices.Clone(esptest.Partitions), func(p esptest.Partition) bool { return p.Type == 0 })
	small := slices.Clone(esptest.Partitions)
	small[3].Size = 4096
	good := func() []byte { return esptest.Merged(app, esptest.Partitions, 0) }
	damage := func(at int) []byte { b := good(); b[at] ^= 1; return b }
	for _, tt := range []struct {
		name    string
		file    []byte
		reason  espimage.Reason
		message string
	}{
		{"no application", withoutApps(app, data), espimage.ReasonPartitions, "no_app"},
		{"table damaged", damage(0x8000 + 20), espimage.ReasonPartitions, "md5"},
		{"entry damaged", damage(0x8000 + 64), espimage.ReasonPartitions, "entry=3"},
		{"cut before the application", good()[:0x20000], espimage.ReasonTruncated, "0x20000"},
		{"cut inside it", good()[:0x20000+50_000], espimage.ReasonTruncated, `"ota_0"`},
		{"application damaged", damage(0x20000 + 50_000), espimage.ReasonChecksum, "0x20000"},
		{"application larger than its partition", esptest.Merged(app, small, 0), espimage.ReasonTruncated, "ota_0"},
		{"no application flashed", damage(0x20000), espimage.ReasonMagic, "ota_0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.file)
			if f := wantFault(t, err, tt.reason); !strings.Contains(f.Error(), tt.message) {
				t.Errorf("%v; want %s in it", f, tt.message)
			}
		})
	}
}

func withoutApps(app []byte, data []esptest.Partition) []byte {
	b := esptest.Merged(app, esptest.Partitions, 0)
	copy(b[0x8000:], esptest.Table(data))
	return b
}
