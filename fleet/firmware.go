package fleet

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// MaxImageBytes is the largest upload: a merged binary holds a whole flash.
const MaxImageBytes = 64 << 20

// FirmwareOptions configures [Firmware]. Store, Blobs and Devices are required.
type FirmwareOptions struct {
	Store   ReleaseStore
	Blobs   BlobFiles
	Devices DeviceStore
	// Busy says which devices have a part in an open campaign. May be nil.
	Busy        func(ctx context.Context, devices []DeviceID) ([]DeploymentConflict, error)
	Quarantines QuarantineStore // may be nil
	Events      *Events
	// Revoked is told of images that must not be served from now on.
	Revoked func(sha256 []string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Firmware keeps images and releases: what may go to devices at all.
type Firmware struct {
	ReleaseStore
	o FirmwareOptions
}

// NewFirmware returns the service.
func NewFirmware(o FirmwareOptions) *Firmware { return &Firmware{ReleaseStore: o.Store, o: o} }

// An ImageUpload is a file that somebody hands in as firmware.
type ImageUpload struct {
	Body     io.Reader // at most [MaxImageBytes]
	FileName string
	Board    string // "" if not stated
	Notes    string
}

// A ReleaseRequest asks for a release.
type ReleaseRequest struct {
	Version string // "" takes the images'
	Notes   string
	Images  []string // SHA-256
	Draft   bool
}

// A FitQuery asks which devices an image or release fits.
type FitQuery struct {
	Release uuid.UUID // or
	Image   string    // SHA-256
	Query   string
	Options FitOptions
}

// A FitReport says which devices fit, which do not, and why.
type FitReport struct {
	Matched, Fit int
	Sample       []DeviceID // of those that fit
	Misfits      []Misfits  // most first
}

// Misfits are the devices that do not fit for one reason.
type Misfits struct {
	Reason SkipReason
	Detail string // of one of them: "slot of 1,536 KiB, image of 2,600 KiB"
	Count  int
	Sample []DeviceID
}

var errNotBuilt = errors.New("not built")

// Upload reads, checks and stores an image. An upload of bytes that are there
// already returns that image and false.
func (f *Firmware) Upload(ctx context.Context, by Actor, u ImageUpload) (Image, bool, error) {
	return Image{}, false, errNotBuilt
}

// Update changes what operators say about an image; nil stays.
func (f *Firmware) Update(ctx context.Context, by Actor, sha256 string, board, notes *string) (Image, error) {
	return Image{}, errNotBuilt
}

// Revoke withdraws an image: it is never served again, not even to a link in use.
func (f *Firmware) Revoke(ctx context.Context, by Actor, sha256, reason string) (Image, error) {
	return Image{}, errNotBuilt
}

// Delete forgets an image that nothing names, and its bytes.
func (f *Firmware) Delete(ctx context.Context, by Actor, sha256 string) error { return errNotBuilt }

// Create makes a release of images.
func (f *Firmware) Create(ctx context.Context, by Actor, r ReleaseRequest) (Release, error) {
	return Release{}, errNotBuilt
}

// Edit changes a draft.
func (f *Firmware) Edit(ctx context.Context, by Actor, id uuid.UUID, r ReleaseRequest) (Release, error) {
	return Release{}, errNotBuilt
}

// SetState releases a draft, deprecates or revokes. Revoking needs a reason.
func (f *Firmware) SetState(ctx context.Context, by Actor, id uuid.UUID, to ReleaseState, reason string) (Release, error) {
	return Release{}, errNotBuilt
}

// Fit says which devices an image or release fits. It changes nothing.
func (f *Firmware) Fit(ctx context.Context, q FitQuery) (FitReport, error) {
	return FitReport{}, errNotBuilt
}
