package espimage_test

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"testing"

	"fleetd/fleet/espimage"
	"fleetd/fleet/espimage/esptest"
)

// A strict reader fails the test if bytes outside of it, or many bytes at once, are
// requested.
type strict struct {
	t    *testing.T
	data []byte
}

func (s strict) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > int64(len(s.data)) || len(p) > 32<<10 {
		s.t.Fatalf("asked for %d bytes at %d of %d", len(p), off, len(s.data))
	}
	return copy(p, s.data[off:]), nil
}

func FuzzParse(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.Image)
	}
	f.Add(esptest.Bootloader())
	f.Add(esptest.Merged(esptest.App{}.Bytes(), esptest.Partitions, 0x1000))
	for _, b := range signedBlocks(f) {
		f.Add(behind(vectors(f)[0].Image, b.Block))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		img, err := espimage.Parse(strict{t, data}, int64(len(data)))
		if err != nil {
			if err.Error() == "" || img != nil {
				t.Fatalf("%+v, %q", img, err)
			}
			return
		}
		if img.Offset < 0 || img.Size < img.Length || img.Offset+img.Size > int64(len(data)) || img.Chip == "" {
			t.Fatalf("%+v of %d bytes", img, len(data))
		}
		if img.Merged != nil { // the extracted part parses as the same image
			again, err := espimage.Parse(io.NewSectionReader(strict{t, data}, img.Offset, img.Size), img.Size)
			if err != nil || again.Descriptor != img.Descriptor || len(again.Signatures) != len(img.Signatures) {
				t.Fatalf("cut out: %+v, %v", again, err)
			}
		}
	})
}

// FuzzSignature repairs the CRC, so that the fuzzer reaches keys and numbers of all kinds.
func FuzzSignature(f *testing.F) {
	app := vectors(f)[0].Image
	for _, b := range signedBlocks(f) {
		f.Add(b.Block)
	}
	f.Fuzz(func(t *testing.T, block []byte) {
		if len(block) != 1216 {
			return
		}
		binary.LittleEndian.PutUint32(block[1196:], crc32.ChecksumIEEE(block[:1196]))
		if _, err := parse(behind(app, block)); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	for _, b := range signedBlocks(f) {
		f.Add([]byte(b.PublicKey))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := espimage.ParseKeys(text)
		if (err == nil) != (len(keys) > 0) {
			t.Fatalf("%v, %v", keys, err)
		}
	})
}
