package ui

import (
	"context"
	"net/url"
	"slices"
	"time"
)

// Addresses of pictures.
const (
	PathPictures = "/pictures"         // with an id: the page of a picture; GET also fanout, kind, since, until
	PathCompare  = "/pictures/compare" // GET a, b, view; or p twice, or a and device
)

// Files of the pages of pictures, which are not in those of all pages.
const (
	pictureScript = "pictures.js"
	pictureStyle  = "pictures.css"
)

// ViewOverlay is the view of [PathCompare] that lays one picture over the other.
const ViewOverlay = "overlay"

// PicturePath is the page of one picture.
func PicturePath(id string) string { return PathPictures + "/" + url.PathEscape(id) }

// PictureKinds are the kinds in the filter of a gallery; "" means all.
var PictureKinds = []string{"", "screen", "camera"}

// A Gallery shows pictures: of a device by day, newest first, or of a fan-out by device.
type Gallery struct {
	List                 ListURL // kind, since, until, limit, cursor
	FanOut               string  // id; "" for a device's
	Pictures             []Snapshot
	Prev, Next           string
	SinceText, UntilText string // as typed
	Problem              string // why there are no pictures, in the page's language
}

// A galleryDay is the pictures of one day.
type galleryDay struct {
	at       time.Time // zero: not by day
	pictures []Snapshot
}

// days groups the pictures by the day of the reader's zone.
func (g Gallery) days(ctx context.Context) (days []galleryDay) {
	if g.FanOut != "" {
		return []galleryDay{{pictures: g.Pictures}}
	}
	var before string
	for _, p := range g.Pictures {
		day := p.At.In(page(ctx).Zone).Format(time.DateOnly)
		if day != before {
			days, before = append(days, galleryDay{at: p.At}), day
		}
		last := &days[len(days)-1]
		last.pictures = append(last.pictures, p)
	}
	return days
}

// filtered reports whether a filter may hide pictures.
func (g Gallery) filtered() bool {
	return g.List.Get("kind") != "" || g.List.Get("since") != "" || g.List.Get("until") != ""
}

// pictureURL is the page of a picture, whose neighbours are those in this gallery.
func (g Gallery) pictureURL(p Snapshot) string {
	return withFilter(p.ID, g.filter())
}

// filter returns the parameters that a picture's page keeps.
func (g Gallery) filter() url.Values {
	v := url.Values{}
	for _, name := range []string{"kind", "since", "until"} {
		if value := g.List.Get(name); value != "" {
			v.Set(name, value)
		}
	}
	if g.FanOut != "" {
		v.Set("fanout", g.FanOut)
	}
	return v
}

func withFilter(id string, filter url.Values) string {
	if len(filter) == 0 {
		return PicturePath(id)
	}
	return PicturePath(id) + "?" + filter.Encode()
}

// A FanOutPicturesPage is the gallery of a fan-out: GET FanOutPath(id, "pictures").
type FanOutPicturesPage struct {
	ID      string
	Tool    string
	Gallery Gallery
}

// A PicturePage shows one picture: GET [PicturePath].
type PicturePage struct {
	Picture       Snapshot
	Before, After *Snapshot // neighbours in the gallery
	Filter        url.Values
	Older         *Snapshot // the device's picture of the same kind before this one in time; nil: none
}

// back is the gallery that the picture is in.
func (v PicturePage) back() string {
	kept := url.Values{}
	for name, values := range v.Filter {
		if name != "fanout" {
			kept[name] = values
		}
	}
	path := DevicePath(v.Picture.Device, "screen")
	if id := v.Filter.Get("fanout"); id != "" {
		path = FanOutPath(id, "pictures")
	}
	if len(kept) == 0 {
		return path
	}
	return path + "?" + kept.Encode()
}

func (v PicturePage) inFanOut() bool { return v.Filter.Get("fanout") != "" }

// A ComparedPicture is one side of a comparison.
type ComparedPicture struct {
	Snapshot
	Newer, Older *Snapshot // neighbours of the same device and kind
}

// A ComparePage shows two pictures: GET [PathCompare].
type ComparePage struct {
	A, B    *ComparedPicture // nil: not chosen
	Overlay bool
	Problem string // why a picture is missing, in the page's language
}

// sides are the chosen pictures.
func (v ComparePage) sides() []*ComparedPicture {
	return slices.DeleteFunc([]*ComparedPicture{v.A, v.B}, func(p *ComparedPicture) bool { return p == nil })
}

// CompareURL is the comparison of two pictures; "" if one is not chosen.
func CompareURL(a, b string, overlay bool) string {
	q := url.Values{}
	for name, id := range map[string]string{"a": a, "b": b} {
		if id != "" {
			q.Set(name, id)
		}
	}
	if overlay {
		q.Set("view", ViewOverlay)
	}
	return PathCompare + "?" + q.Encode()
}

// viewURL is this comparison in another view.
func (v ComparePage) viewURL(overlay bool) string { return CompareURL(idOf(v.A), idOf(v.B), overlay) }

// swapURL is this comparison with the sides exchanged.
func (v ComparePage) swapURL() string { return CompareURL(idOf(v.B), idOf(v.A), v.Overlay) }

// stepURL is this comparison with another picture in place of one side's.
func (v ComparePage) stepURL(side *ComparedPicture, to Snapshot) string {
	if side == v.A {
		return CompareURL(to.ID, idOf(v.B), v.Overlay)
	}
	return CompareURL(idOf(v.A), to.ID, v.Overlay)
}

func idOf(p *ComparedPicture) string {
	if p == nil {
		return ""
	}
	return p.ID
}

// deviceTitle names the device of a picture.
func (s Snapshot) deviceTitle() string { return deviceTitle(s.Device, s.DeviceName) }

// kindKey is the message that names the picture's kind.
func (s Snapshot) kindKey() string {
	if s.Camera {
		return "pictures.kind.camera"
	}
	return "pictures.kind.screen"
}

// pickLabel names the checkbox of a picture for those who do not see it.
func (s Snapshot) pickLabel(ctx context.Context) string {
	return t(ctx, "pictures.pick", "device", s.deviceTitle(), "at", s.At)
}

// called reports whether it is known who took the picture.
func (s Snapshot) called() bool { return s.Actor.Kind != "" }

// stepKey is the message of a step to a neighbour.
func stepKey(fanOut, before bool) string {
	switch {
	case fanOut && before:
		return "pictures.device_before"
	case fanOut:
		return "pictures.device_after"
	case before:
		return "pictures.newer"
	}
	return "pictures.older"
}

func kindText(ctx context.Context, kind string) string {
	if kind == "" {
		return t(ctx, "pictures.kind.all")
	}
	return t(ctx, "pictures.kind."+kind)
}
