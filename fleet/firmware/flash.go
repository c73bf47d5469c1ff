package firmware

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// An ImageLayout is what a blank board needs to run an image: the image and
// what else is in flash.
type ImageLayout struct {
	Image     string // its SHA-256
	FlashSize int64  // bytes that the bootloader was built for; 0 if it does not say
	// Problem says why the parts of a merged binary do not go together: it has
	// none then. A [FaultReason], or the code "legacy" with a text of an older
	// version; zero if they do.
	Problem fleet.Reason
	Parts   []ImagePart // by offset
	AddedBy fleet.Principal
	AddedAt time.Time
}

// An ImagePart is a stretch of flash and what belongs there.
type ImagePart struct {
	Kind   espimage.PartKind
	Label  string // of its partition; foreign text. "" for what lies before the first
	Offset int64  // in flash
	Size   int64
	SHA256 string // of its bytes, their key in the blob store; of the app, the image's
}

// Complete reports whether a blank board runs with it.
func (l ImageLayout) Complete() bool { return l.Problem.Code == "" && len(l.Parts) > 0 }

// Size is how many bytes are written to a board.
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
	Release        uuid.UUID // the newest that is released and holds the image
	ReleaseVersion string
	Layout         *ImageLayout // nil: none was handed in
}

// Ready reports whether the image can be put on a blank board.
func (i Installable) Ready() bool { return i.Layout != nil && i.Layout.Complete() }

// An InstallFilter narrows a list of installable images. Zero fields do not filter.
type InstallFilter struct {
	Image string
	Chip  string
	Limit int
}

// LayoutStore keeps the layouts of images.
type LayoutStore interface {
	// PutLayout puts a layout on record, in place of one that is there.
	PutLayout(ctx context.Context, by fleet.Principal, l ImageLayout) error
	Layout(ctx context.Context, image string) (ImageLayout, error)
	// Installable lists images of released releases that are not revoked, once
	// each, those of the newest release first.
	Installable(ctx context.Context, f InstallFilter) ([]Installable, error)
	// UnnamedBlobs returns those of the keys that neither an image nor a part has.
	UnnamedBlobs(ctx context.Context, sha256 []string) ([]string, error)
}
