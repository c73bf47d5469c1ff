package firmware

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// An ImageLayout is what a blank board needs to run an image: the image and the other contents
// of the flash.
type ImageLayout struct {
	Image     string // its SHA-256
	FlashSize int64  // bytes that the bootloader was built for; 0 if unknown
	// Problem is why the parts of a merged binary do not fit together; the layout then has
	// no parts. It is a [FaultReason], or the code "legacy" with a text of an older version;
	// zero without a problem.
	Problem fleet.Reason
	Parts   []ImagePart // by offset
	AddedBy fleet.Principal
	AddedAt time.Time
}

// An ImagePart is a range of flash and its contents.
type ImagePart struct {
	Kind   espimage.PartKind
	Label  string // of its partition; foreign text. "" for a part before the first partition
	Offset int64  // in flash
	Size   int64
	SHA256 string // of its bytes, their key in the blob store; of the app, the image's
}

// Complete reports whether a blank board runs with this layout.
func (l ImageLayout) Complete() bool { return l.Problem.Code == "" && len(l.Parts) > 0 }

// Size returns the number of bytes written to a board.
func (l ImageLayout) Size() (n int64) {
	for _, p := range l.Parts {
		n += p.Size
	}
	return n
}

// An Installable is an image of a release that devices may get, with its
// layout if it has one.
type Installable struct {
	Image          Image
	Release        uuid.UUID // the newest released release with the image
	ReleaseVersion string
	Layout         *ImageLayout // nil: not uploaded
}

// Ready reports whether the image can be put on a blank board.
func (i Installable) Ready() bool { return i.Layout != nil && i.Layout.Complete() }

// An InstallFilter narrows a list of installable images. Zero fields do not filter.
type InstallFilter struct {
	Image string
	Chip  string
	Limit int
}

// LayoutStore stores the layouts of images.
type LayoutStore interface {
	// PutLayout records a layout and replaces an existing one.
	PutLayout(ctx context.Context, by fleet.Principal, l ImageLayout) error
	Layout(ctx context.Context, image string) (ImageLayout, error)
	// Installable lists the images of released releases that are not revoked, each once, the
	// images of the newest release first.
	Installable(ctx context.Context, f InstallFilter) ([]Installable, error)
	// NamedBlobs returns those of the keys that a record names, whatever it is about.
	NamedBlobs(ctx context.Context, keys []string) (map[string]bool, error)
}
