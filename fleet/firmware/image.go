package firmware

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// An Image is the firmware for one kind of board: the app image that a device
// writes to an OTA slot. Everything but Board, FileName and Notes was parsed
// from its bytes.
type Image struct {
	SHA256   string // of the bytes as served, hex: the image's identifier, and its key in the blob store
	Size     int64  // bytes, as served
	FileName string // as uploaded; foreign text
	Board    string // exact board variant that an operator entered; "" fits every board with its chip
	Notes    string

	Chip          string // "esp32s3", as devices name their chip
	Version       string // as the device will report it
	Project       string
	IDFVersion    string
	ELFSHA256     string // as a device that runs it reports it
	CompiledAt    string // "Aug  8 2026 08:33:45", as the build wrote it
	SecureVersion uint32
	MinChipRev    uint16 // major*100+minor
	MaxChipRev    uint16 // 65535: no limit
	FlashSize     int64  // bytes, as the header says; 0 if unknown
	MergedBinary  bool   // was cut out of a merged-binary.bin
	Signatures    []ImageSignature
	// Manifest is the text signed by the holder of a release key, for firmware that installs
	// only images with a manifest; "" without a manifest.
	Manifest          string
	ManifestSignature string // Ed25519, base64
	ManifestKey       string // public key that verifies the signature, hex; "" if unknown
	ManifestChecked   bool   // that key is one of fleetd's configured keys
	// NotOfferable is why no boot poll may offer the image: its version would crash devices
	// (protocol 1.6). It can still be pushed. "" if it may be offered.
	NotOfferable string

	UploadedBy   fleet.Principal
	CreatedAt    time.Time
	RevokedAt    *time.Time // from then on it is never served
	RevokedBy    string
	RevokeReason string
}

// VersionWarnings returns what stock firmware misreads in the image's version.
func (i Image) VersionWarnings() []VersionWarning { return VersionWarnings(i.Version) }

// An ImageSignature is one Secure Boot v2 signature block of an image.
type ImageSignature struct {
	KeyDigest string `json:"key_digest"` // SHA-256 of the public key as the chip's fuses hold it, hex
	Scheme    string `json:"scheme"`     // "rsa3072", "ecdsa256", "ecdsa192"
	Valid     bool   `json:"valid"`      // the block's own checks and its signature hold
	Trusted   bool   `json:"trusted"`    // made with a key that was loaded into fleetd
}

// ReleaseState is the state of a release.
type ReleaseState string

const (
	ReleaseDraft      ReleaseState = "draft"      // being prepared; no campaign can start with it
	ReleaseReleased   ReleaseState = "released"   // may go to devices
	ReleaseDeprecated ReleaseState = "deprecated" // no new campaigns; running ones continue
	ReleaseRevoked    ReleaseState = "revoked"    // its images are never served again
)

// ReleaseStates lists every state, in the order of a release's life.
var ReleaseStates = []ReleaseState{ReleaseDraft, ReleaseReleased, ReleaseDeprecated, ReleaseRevoked}

// A Release is a version: one image per board, with notes.
type Release struct {
	ID        uuid.UUID
	Version   string
	Notes     string
	State     ReleaseState
	Images    []Image // by board, then chip
	CreatedBy fleet.Principal
	CreatedAt time.Time
	ChangedAt time.Time // of the state
	Reason    string    // why it was deprecated or revoked
}

// ImageFor returns the image for a device of this board and chip: the image built for exactly
// that board, else one for any board with its chip.
func (r Release) ImageFor(board, chip string) (Image, bool) {
	var general *Image
	for i, img := range r.Images {
		switch {
		case img.Chip != chip:
		case img.Board != "" && img.Board == board:
			return img, true
		case img.Board == "":
			general = &r.Images[i]
		}
	}
	if general == nil {
		return Image{}, false
	}
	return *general, true
}

// An ImageFilter narrows a list of images. Zero fields do not filter.
type ImageFilter struct {
	Chip, Board, Version string
	Limit                int
	Cursor               string
}

// A ReleaseFilter narrows a list of releases. Zero fields do not filter.
type ReleaseFilter struct {
	State  ReleaseState
	Limit  int
	Cursor string
}

// Store stores images and releases; the bytes are in the blob store.
type Store interface {
	// CreateImage records an image. If an image with that SHA-256 exists, it returns that image
	// and false.
	CreateImage(ctx context.Context, by fleet.Principal, img Image) (stored Image, created bool, err error)
	Image(ctx context.Context, sha256 string) (Image, error)
	ImagesByELF(ctx context.Context, elfSHA256 []string) ([]Image, error) // not revoked, newest first
	Images(ctx context.Context, f ImageFilter) (fleet.Page[Image], error) // newest first
	UpdateImage(ctx context.Context, by fleet.Principal, sha256 string, board, notes *string) error
	// SetImageManifest stores the manifest of img, with its signature and key.
	SetImageManifest(ctx context.Context, by fleet.Principal, img Image) error
	// RevokeImages revokes the images that are not yet revoked.
	RevokeImages(ctx context.Context, by fleet.Principal, sha256 []string, reason string, at time.Time) error
	// DeleteImage deletes an image that no release and no deployment refers to, else
	// [fleet.ErrConflict] (image_in_use).
	DeleteImage(ctx context.Context, by fleet.Principal, sha256 string) error
	// RunningByELF counts devices in service by the build they run, for the given builds.
	RunningByELF(ctx context.Context, elfSHA256 []string) (map[string]int, error)

	CreateRelease(ctx context.Context, by fleet.Principal, r Release) error
	Release(ctx context.Context, id uuid.UUID) (Release, error)
	Releases(ctx context.Context, f ReleaseFilter) (fleet.Page[Release], error) // newest first
	// UpdateRelease changes a draft's notes, version and images.
	UpdateRelease(ctx context.Context, by fleet.Principal, r Release) error
	// SetReleaseState changes the state of a release; [fleet.ErrConflict] (release_changed) if
	// it is no longer in from. Revoking revokes its images.
	SetReleaseState(ctx context.Context, by fleet.Principal, id uuid.UUID, from, to ReleaseState, reason string,
		at time.Time) error
}
