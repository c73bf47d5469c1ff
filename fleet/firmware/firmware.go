package firmware

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// Limits of firmware and what is said about it.
const (
	MaxImageBytes     = 64 << 20 // of an upload: a merged binary holds a whole flash
	maxReleaseImages  = 500
	maxFirmwareNotes  = 32 << 10
	maxFirmwareReason = 500
	maxBoardBytes     = 100
	maxFileNameBytes  = 200
)

// Options configures [Service]. Store, Blobs and Devices are required.
type Options struct {
	Store   Store
	Blobs   fleet.BlobFiles
	Devices fleet.DeviceStore
	// Unavailable returns which of the devices cannot have firmware for now, whatever the
	// image: they are quarantined, or have a part in a campaign. May be nil.
	Unavailable func(ctx context.Context, devices []fleet.DeviceID, now time.Time) (map[fleet.DeviceID]Misfits, error)
	// RolledBack returns which of the builds, named by their ELF, each of the devices took
	// and did not keep, by its latest verdict on them. May be nil.
	RolledBack func(ctx context.Context, devices []fleet.DeviceID, builds []string) (map[fleet.DeviceID][]string, error)
	// Layouts keeps what blank boards need in addition to an image. nil keeps nothing.
	Layouts LayoutStore
	Events  *fleet.Events
	// Revoked receives the images that must not be served from now on.
	Revoked func(sha256 []string)
	// Keys are those that signatures of images are trusted of.
	Keys []espimage.Key
	// ManifestKeys are those that manifests of images must be signed with one
	// of. Without keys, any manifest that agrees with its image is accepted.
	ManifestKeys []ed25519.PublicKey
	// RequireSigned refuses images without a good signature of one of the keys.
	RequireSigned bool
	// RequireManifest withholds images until they have a manifest.
	RequireManifest bool
	// Floors keeps the least version of each board. nil keeps none.
	Floors FloorStore
	// TempDir is where uploads wait while they are read. Default: the system's.
	TempDir string
	Log     *slog.Logger
	Now     func() time.Time
}

// A Service keeps images and releases: what may go to devices at all. Any
// signed-in operator may read; each write checks who acts.
type Service struct {
	o       Options
	checker *Checker
	// stored keeps a blob from being deleted between the upload of its bytes
	// and their going on record.
	stored sync.RWMutex
	staged staging
}

// New returns the service.
func New(o Options) *Service {
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Revoked == nil {
		o.Revoked = func([]string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Service{o: o, checker: NewChecker(CheckerOptions{Blobs: o.Blobs, Floors: o.Floors, Keys: o.Keys,
		ManifestKeys: o.ManifestKeys, RequireSigned: o.RequireSigned, RequireManifest: o.RequireManifest, Log: o.Log,
		Now: o.Now})}
}

// Limits says which of the images may not be used now, and why: at no upload,
// release, campaign, link or blank board.
func (f *Service) Limits(ctx context.Context, images []Image) (Limits, error) {
	return f.checker.Limits(ctx, images)
}

// CheckStored is Check for an image by its name, as downloads know it.
func (f *Service) CheckStored(ctx context.Context, sha256, board string) (fleet.Reason, error) {
	img, err := f.Image(ctx, sha256)
	if err != nil {
		return fleet.Reason{}, err
	}
	return f.Check(ctx, img, board)
}

// Check returns why the image may not be used now on devices with this board;
// the zero Reason if it may.
func (f *Service) Check(ctx context.Context, img Image, board string) (fleet.Reason, error) {
	return f.checker.Check(ctx, img, board)
}

func (f *Service) announce(subject string) {
	f.o.Events.Publish(fleet.Event{Kind: fleet.EventRelease, At: f.o.Now(), Subject: subject})
}

var boardPattern = regexp.MustCompile(`^[a-z0-9.-]+$`)

// cleanBoard accepts a board as boot polls name it, or "" for any.
func cleanBoard(board string) (string, error) {
	board = strings.TrimSpace(board)
	if board != "" && (len(board) > maxBoardBytes || !boardPattern.MatchString(board)) {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_board.firmware", "value", board).At("board")
	}
	return board, nil
}

// cleanFirmwareNotes keeps lines and tabs, and nothing that a page cannot show.
func cleanFirmwareNotes(notes string) (string, error) {
	if len(notes) > maxFirmwareNotes {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_notes", "limit", 32).At("notes")
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, notes)), nil
}

// cleanReason checks an operator's reason, which revoking must have.
func cleanReason(reason string) (string, error) {
	reason, err := fleet.CleanLine("reason", reason, maxFirmwareReason)
	if err == nil && reason == "" {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_reason.revoke").At("reason")
	}
	return reason, err
}

// short is enough of a digest to name an image to a person.
func short(sha256 string) string { return fleet.CleanText(sha256, 12) }
