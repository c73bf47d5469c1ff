package sim

import (
	"bytes"
	"io"
	"testing"
)

// TestImageVectors gives devices the images of the vectors. What the server must refuse, a device
// does not boot either.
func TestImageVectors(t *testing.T) {
	var vectors struct {
		Cases []struct {
			Name   string
			Image  []byte `json:"image_base64"`
			Expect struct {
				Valid  bool   `json:"valid_app"`
				ChipID uint16 `json:"chip_id"`
				ELF    string `json:"elf_sha256"`
				Version, Reason,
				IDF string
			}
		}
	}
	load(t, "app_image.json", &vectors)
	if len(vectors.Cases) < 10 {
		t.Fatalf("%d cases", len(vectors.Cases))
	}
	for _, c := range vectors.Cases {
		chip := c.Expect.ChipID
		if chip == 0 {
			chip = esp32s3.imageID
		}
		for _, piece := range []int{1, 7, 4096} {
			image := newAppImage(chip)
			_, err := io.CopyBuffer(struct{ io.Writer }{image}, struct{ io.Reader }{bytes.NewReader(c.Image)},
				make([]byte, piece))
			var b *build
			if err == nil {
				b, err = image.finish()
			}
			if (err == nil) != c.Expect.Valid {
				t.Errorf("%s, %d bytes at a time: %v; valid is %v (%s)", c.Name, piece, err, c.Expect.Valid, c.Expect.Reason)
			}
			if err == nil && (b.version != c.Expect.Version || c.Expect.ELF != "" && b.elf != c.Expect.ELF) {
				t.Errorf("%s: version %q, elf %s", c.Name, b.version, b.elf)
			}
		}
	}
}
