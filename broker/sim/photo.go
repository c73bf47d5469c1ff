package sim

import (
	"image"
	"image/color"
)

// photo returns the camera's picture: an imaginary room with the device's own colours, and the
// question on a strip below.
func (d *Device) photo(question string) ([]byte, error) {
	c := canvas{image.NewRGBA(image.Rect(0, 0, 320, 240)), themes["dark"]}
	tint := digest(0, "photo", d.id.mac)
	for y := range 240 {
		shade := uint8(90 + y/3)
		c.fill(image.Rect(0, y, 320, y+1), color.RGBA{shade, shade - tint[0]%40, shade - tint[1]%40, 0xff})
	}
	for i := range 5 {
		at := image.Pt(30+int(tint[2+i])%260, 60+int(tint[8+i])%120)
		c.disc(at, 8+int(tint[14+i])%26, color.RGBA{tint[20+i], tint[19+i], 0x80, 0xff})
	}
	c.fill(image.Rect(0, 220, 320, 240), c.back)
	c.text(6, 226, 1, c.ink, clip(question, 50))
	return encode(c, 80)
}
