package firmware

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/token"
)

// A Link is the one-time address of an attempt's image. It allows one whole download, from any
// offset, until it expires or is revoked.
type Link struct {
	TokenHash  []byte // SHA-256 of the token
	Deployment uuid.UUID
	Campaign   uuid.UUID
	Device     fleet.DeviceID
	Attempt    int
	Image      string
	Size       int64
	ExpiresAt  time.Time

	// The store fills these when the link is used.
	Board   string // of the device
	Foreign bool   // deployment or plan name another image: it must not be served
	Begun   bool   // a GET of its attempt is on record
}

// NewLink completes the link of an attempt and returns it with its address. The link works as
// soon as it is stored.
func NewLink(publicURL string, l Link, ttl time.Duration, now time.Time) (Link, string) {
	text := token.New()
	l.TokenHash, l.ExpiresAt = token.Hash(text), now.Add(ttl).UTC()
	return l, strings.TrimSuffix(publicURL, "/") + "/d/" + text + "/firmware.bin"
}

// A Transfer is evidence about a download: get, bytes, cut or downloaded.
type Transfer struct {
	Deployment uuid.UUID
	Attempt    int
	At         time.Time
	Kind       fleet.EvidenceKind
	Reason     fleet.Reason // get, cut: a code of [Reasons]; none for most
	Sent       int64        // bytes so far
}

// LinkStore stores the links of downloads.
type LinkStore interface {
	// FirmwareLink returns a link that may be used at the given time: not expired, revoked or
	// used up, and its image not revoked. Otherwise it returns [fleet.ErrNotFound]. A link
	// whose rows were tampered with is [Link.Foreign].
	FirmwareLink(ctx context.Context, tokenHash []byte, now time.Time) (Link, error)
	// FinishFirmwareLink marks a link as used up: every byte was sent.
	FinishFirmwareLink(ctx context.Context, tokenHash []byte, at time.Time) error
}
