package web_test

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"io"
	"path"
	"testing"
)

// testPNG draws a small picture.
func testPNG(t testing.TB) []byte {
	img := image.NewRGBA(image.Rect(0, 0, 32, 24))
	img.Set(1, 1, color.White)
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Error(err)
	}
	return b.Bytes()
}

// upload gives fleetd a picture as a device does, by its one-time address.
func (c *console) upload(ctx context.Context, url string, picture []byte) error {
	_, err := c.snapshots.Receive(ctx, path.Base(url), func() (io.Reader, error) { return bytes.NewReader(picture), nil })
	return err
}
