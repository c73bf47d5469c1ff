package sim

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"strings"
	"time"
)

// A palette is the colours of a theme.
type palette struct{ back, panel, ink, soft, accent color.RGBA }

var themes = map[string]palette{
	"light": {
		back: color.RGBA{0xf4, 0xf6, 0xfa, 0xff}, panel: color.RGBA{0xff, 0xff, 0xff, 0xff}, ink: color.RGBA{0x1d, 0x24, 0x33,
			0xff},
		soft: color.RGBA{0xc8, 0xd0, 0xde, 0xff}, accent: color.RGBA{0x2f, 0x6f, 0xed, 0xff},
	},
	"dark": {
		back: color.RGBA{0x10, 0x14, 0x1f, 0xff}, panel: color.RGBA{0x1c, 0x23, 0x33, 0xff}, ink: color.RGBA{0xe8, 0xec, 0xf5,
			0xff},
		soft: color.RGBA{0x3a, 0x45, 0x5e, 0xff}, accent: color.RGBA{0x5b, 0xa3, 0xff, 0xff},
	},
}

// A canvas is a screen being drawn.
type canvas struct {
	*image.RGBA
	palette
}

// screenshot draws the current contents of the device's screen.
func (d *Device) screenshot(quality int) ([]byte, error) {
	s, size := d.State(), d.board.screen
	c := canvas{image.NewRGBA(image.Rect(0, 0, size.width, size.height)), themes[s.Theme]}
	c.fill(c.Rect, c.back)
	c.statusBar(d, s)
	c.face(s)
	c.facts(d, s)
	if d.board.backlight {
		c.dim(s.Brightness)
	}
	return encode(c, quality)
}

func encode(img image.Image, quality int) ([]byte, error) {
	var b bytes.Buffer
	err := jpeg.Encode(&b, img, &jpeg.Options{Quality: quality})
	return b.Bytes(), err
}

// statusBar shows network, clock and battery, as the firmware's top line does.
func (c canvas) statusBar(d *Device, s State) {
	bar := image.Rect(0, 0, c.Rect.Dx(), 20)
	c.fill(bar, c.panel)
	c.fill(image.Rect(0, 20, c.Rect.Dx(), 21), c.soft)
	name := d.link.ssid
	if d.board.network == cellular {
		name = "4G"
	}
	if c.wide() {
		c.text(8, 6, 1, c.ink, strings.Map(drawable, name))
	}
	c.centre(6, 1, c.ink, time.Now().Format("15:04:05"))
	if d.board.battery {
		label := fmt.Sprintf("%d%%", s.Battery)
		c.text(c.Rect.Dx()-8-textWidth(label, 1), 6, 1, c.ink, label)
	}
}

// face draws the firmware's emotion, between the bars.
func (c canvas) face(s State) {
	w, h := c.Rect.Dx(), c.Rect.Dy()
	centre, r := image.Pt(w/2, 21+(h-21)*3/10), (h-21)/5
	ring := c.accent
	if s.Lamp && s.RGB != [3]uint8{} {
		ring = color.RGBA{s.RGB[0], s.RGB[1], s.RGB[2], 0xff}
	} else if s.Lamp {
		ring = color.RGBA{0xf5, 0xb9, 0x2b, 0xff}
	}
	c.disc(centre, r, ring)
	c.disc(centre, r-max(2, r/10), c.panel)
	for _, side := range []int{-1, 1} {
		c.disc(centre.Add(image.Pt(side*r*2/5, -r/5)), max(2, r/8), c.ink)
	}
	for x := -r / 2; x <= r/2; x++ { // a smile is a parabola
		y := r/2 - x*x*2/max(1, r)
		c.disc(centre.Add(image.Pt(x, y)), max(1, r/16), c.ink)
	}
}

// facts draws the board, the device, its version, the volume and a message.
func (c canvas) facts(d *Device, s State) {
	scale := 1
	if c.wide() {
		scale = 2
	}
	line := glyphHeight*scale + 4
	y := 21 + (c.Rect.Dy()-21)*11/20
	c.centre(y, fit(d.board.name, scale, c.Rect.Dx()), c.ink, d.board.name)
	id := d.id.mac
	if c.wide() {
		id += "  v" + d.running().build.version
	}
	c.centre(y+line, 1, c.accent, id)
	c.volume(y+line+14, s.Volume, c.wide() || s.Message == "")
	if s.Message != "" {
		message := strings.ReplaceAll(s.Message, "\n", " ")
		c.centre(c.Rect.Dy()-glyphHeight-6, 1, c.ink, clip(message, (c.Rect.Dx()-8)/(glyphWidth+1)))
	}
}

// wide reports whether the screen has room for two texts side by side.
func (c canvas) wide() bool { return c.Rect.Dx() >= 240 }

// drawable drops characters that the font lacks.
func drawable(r rune) rune {
	if r > '~' {
		return -1
	}
	return r
}

func (c canvas) volume(y, percent int, label bool) {
	w := c.Rect.Dx()
	track := image.Rect(w/8, y, w*7/8, y+8)
	c.fill(track, c.soft)
	track.Max.X = track.Min.X + track.Dx()*percent/100
	c.fill(track, c.accent)
	if label {
		c.centre(y+13, 1, c.ink, fmt.Sprintf("volume %d", percent))
	}
}

// dim darkens the picture as a weaker backlight does, but never to black.
func (c canvas) dim(brightness int) {
	if brightness >= 75 {
		return
	}
	share := 35 + brightness*65/75
	for i := range c.Pix {
		if i%4 != 3 {
			c.Pix[i] = uint8(int(c.Pix[i]) * share / 100)
		}
	}
}

func (c canvas) fill(r image.Rectangle, col color.RGBA) {
	draw.Draw(c.RGBA, r, image.NewUniform(col), image.Point{}, draw.Src)
}

func (c canvas) disc(at image.Point, r int, col color.RGBA) {
	for y := -r; y <= r; y++ {
		for x := -r; x <= r; x++ {
			if x*x+y*y <= r*r {
				c.SetRGBA(at.X+x, at.Y+y, col)
			}
		}
	}
}

func textWidth(s string, scale int) int {
	return (len([]rune(s))*(glyphWidth+1) - 1) * scale
}

// fit returns the largest scale up to scale at which s fits the width.
func fit(s string, scale, width int) int {
	for scale > 1 && textWidth(s, scale) > width-8 {
		scale--
	}
	return scale
}

func (c canvas) centre(y, scale int, col color.RGBA, s string) {
	c.text((c.Rect.Dx()-textWidth(s, scale))/2, y, scale, col, s)
}

func (c canvas) text(x, y, scale int, col color.RGBA, s string) {
	for _, r := range s {
		for i, column := range glyph(r) {
			for j := range glyphHeight {
				if column>>j&1 == 1 {
					dot := image.Pt(x+i*scale, y+j*scale)
					c.fill(image.Rectangle{dot, dot.Add(image.Pt(scale, scale))}, col)
				}
			}
		}
		x += (glyphWidth + 1) * scale
	}
}
