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

// Limits of firmware images and their metadata.
const (
	MaxImageBytes     = 64 << 20 // of an upload: a merged binary contains a whole flash
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
	// Unavailable returns which of the devices cannot get firmware now, whatever the image:
	// they are quarantined, or belong to a campaign. May be nil.
	Unavailable func(ctx context.Context, devices []fleet.DeviceID, now time.Time) (map[fleet.DeviceID]Misfits, error)
	// RolledBack returns, for each device, which of the builds (by ELF SHA-256) it installed
	// and rolled back, by its latest result. May be nil.
	RolledBack func(ctx context.Context, devices []fleet.DeviceID, builds []string) (map[fleet.DeviceID][]string, error)
	// Layouts stores what blank boards need in addition to an image. With nil nothing is stored.
	Layouts LayoutStore
	Events  *fleet.Events
	// Revoked receives the images that must not be served from now on.
	Revoked func(sha256 []string)
	// Keys are the keys whose image signatures are trusted.
	Keys []espimage.Key
	// ManifestKeys are the trusted keys for manifests: one of them must have signed the
	// manifest. Without keys, any manifest that agrees with its image is accepted.
	ManifestKeys []ed25519.PublicKey
	// RequireSigned refuses images without a valid signature by one of the keys.
	RequireSigned bool
	// RequireManifest withholds images until they have a manifest.
	RequireManifest bool
	// Floors stores the minimum version of each board. With nil there are no floors.
	Floors FloorStore
	// TempDir is the folder of uploads while they are read. Default: the system's.
	TempDir string
	Log     *slog.Logger
	Now     func() time.Time
}

// A Service manages images and releases: the firmware that devices may get. Any signed-in
// operator may read; each write checks the rights of its principal.
type Service struct {
	o       Options
	checker *Checker
	// stored prevents the deletion of a blob between the upload of its bytes and their record.
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

// Limits returns which of the images may not be used now, and why. Uploads, releases,
// campaigns, links and blank boards all apply it.
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

// cleanBoard accepts a board name as boot polls contain it, or "" for any board.
func cleanBoard(board string) (string, error) {
	board = strings.TrimSpace(board)
	if board != "" && (len(board) > maxBoardBytes || !boardPattern.MatchString(board)) {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_board.firmware", "value", board).At("board")
	}
	return board, nil
}

// cleanFirmwareNotes keeps lines and tabs, and drops characters that a page cannot show.
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

// cleanReason checks an operator's reason, which is required to revoke.
func cleanReason(reason string) (string, error) {
	reason, err := fleet.CleanLine("reason", reason, maxFirmwareReason)
	if err == nil && reason == "" {
		return "", fleet.Refuse(fleet.ErrInvalid, "invalid_reason.revoke").At("reason")
	}
	return reason, err
}

// short shortens a digest to a length that identifies an image to a person.
func short(sha256 string) string { return fleet.CleanText(sha256, 12) }
