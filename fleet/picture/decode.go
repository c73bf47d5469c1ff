package picture

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"net/http"

	"fleetd/fleet"
)

// Limits of pictures, from devices and operators alike.
const (
	MaxSnapshotBytes = 4 << 20
	maxPictureSide   = 4096 // pixels
	maxScans         = 64   // of a JPEG: thousands fit into 4 MiB, and each costs a pass over all pixels
	maxPreviewBytes  = 200 << 10
)

// defaultScreen is the screen size for previews if the device's is unknown.
var defaultScreen = image.Pt(320, 480)

// Reasons to refuse a picture.
var (
	errPictureTooLarge = pictureTooLarge(MaxSnapshotBytes)
	errTooManyPixels   = fleet.Refuse(fleet.ErrInvalid, "too_large.pixels", "limit", maxPictureSide)
	errNoPicture       = fleet.Refuse(fleet.ErrInvalid, "unsupported_picture")
)

func pictureTooLarge(limit int) *fleet.Error {
	return fleet.Refuse(fleet.ErrInvalid, "too_large.picture", "limit", limit>>20)
}

func readPicture(r io.Reader, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	var refused *fleet.Error
	switch {
	case len(data) > limit:
		return nil, pictureTooLarge(limit)
	case errors.As(err, &refused):
		return nil, err
	case err != nil:
		return nil, fleet.Refuse(fleet.ErrInvalid, "broken_upload.bytes", "n", len(data))
	}
	return data, nil
}

// decodePicture decodes a whole picture after checking its size. It detects the format from
// the content, not from what the sender claims.
func decodePicture(data []byte) (image.Image, string, error) {
	mediaType := http.DetectContentType(data)
	var decode func(io.Reader) (image.Image, error)
	var config func(io.Reader) (image.Config, error)
	switch mediaType {
	case "image/jpeg":
		decode, config = jpeg.Decode, jpeg.DecodeConfig
	case "image/png":
		decode, config = png.Decode, png.DecodeConfig
	default:
		return nil, "", errNoPicture
	}
	c, err := config(bytes.NewReader(data))
	switch {
	case err != nil, c.Width < 1, c.Height < 1:
		return nil, "", errNoPicture
	case c.Width > maxPictureSide, c.Height > maxPictureSide:
		return nil, "", errTooManyPixels
	case mediaType == "image/jpeg" && bytes.Count(data, []byte{0xff, 0xda}) > maxScans:
		return nil, "", errNoPicture
	}
	img, err := decode(bytes.NewReader(data))
	if err != nil {
		return nil, "", errNoPicture
	}
	return img, mediaType, nil
}

// encodePreview returns a JPEG of at most the screen's size, because devices load the whole
// picture into memory.
func encodePreview(img image.Image, screen image.Point) ([]byte, error) {
	if screen.X < 1 || screen.Y < 1 {
		screen = defaultScreen
	}
	small := shrink(img, screen)
	for _, quality := range []int{85, 70, 50, 30} {
		var out bytes.Buffer
		if err := jpeg.Encode(&out, small, &jpeg.Options{Quality: quality}); err != nil {
			return nil, fmt.Errorf("encoding the preview: %w", err)
		}
		if out.Len() <= maxPreviewBytes {
			return out.Bytes(), nil
		}
	}
	return nil, errPictureTooLarge
}

// shrink scales the picture to fit into box and fills transparent areas with white. Each
// pixel is the mean of those it replaces. Small pictures are not enlarged.
func shrink(img image.Image, box image.Point) *image.RGBA {
	from := image.NewRGBA(image.Rectangle{Max: img.Bounds().Size()})
	draw.Draw(from, from.Rect, image.White, image.Point{}, draw.Src)
	draw.Draw(from, from.Rect, img, img.Bounds().Min, draw.Over)
	size := from.Rect.Max
	w, h := fit(size, box)
	out := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		y0, y1 := y*size.Y/h, (y+1)*size.Y/h
		for x := range w {
			out.SetRGBA(x, y, mean(from, image.Rect(x*size.X/w, y0, (x+1)*size.X/w, y1)))
		}
	}
	return out
}

// fit returns the largest size inside box that has the proportions of size and is no larger
// than size.
func fit(size, box image.Point) (w, h int) {
	w, h = size.X, size.Y
	if w > box.X {
		w, h = box.X, h*box.X/w
	}
	if h > box.Y {
		w, h = w*box.Y/h, box.Y
	}
	return max(w, 1), max(h, 1)
}

// mean returns the mean colour of a non-empty area.
func mean(img *image.RGBA, area image.Rectangle) color.RGBA {
	var r, g, b, n int
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			c := img.RGBAAt(x, y)
			r, g, b, n = r+int(c.R), g+int(c.G), b+int(c.B), n+1
		}
	}
	return color.RGBA{uint8(r / n), uint8(g / n), uint8(b / n), 0xff}
}
