package picture

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/internal/token"
)

// URLLinks issues one-time addresses for the url arguments of calls, and invalidates them
// when they are used.
//
// A device sends neither its id nor a secret with such a request. The link alone identifies
// it: the link is unguessable, for one use and one purpose, and valid only for minutes.
type URLLinks struct {
	store     URLLinkStore
	publicURL string
	now       func() time.Time
}

// NewURLLinks returns links below publicURL: http://host:port, as devices
// reach fleetd.
func NewURLLinks(store URLLinkStore, publicURL string, now func() time.Time) *URLLinks {
	if now == nil {
		now = time.Now
	}
	return &URLLinks{store, strings.TrimSuffix(publicURL, "/"), now}
}

// UploadURL returns an address to which the device can post one picture for the call.
func (u *URLLinks) UploadURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string,
	error) {
	token, err := u.link(ctx, URLLink{Purpose: fleet.LinkUpload, Device: device, Call: call}, ttl)
	return u.publicURL + "/u/" + token, err
}

// PreviewURL returns an address from which the device can fetch, once, a picture that
// [Service.Preview] stored.
func (u *URLLinks) PreviewURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, picture string,
	ttl time.Duration) (
	string, error) {
	token, err := u.link(ctx, URLLink{Purpose: fleet.LinkPreview, Device: device, Call: call, Blob: picture,
		MediaType: "image/jpeg"}, ttl)
	return u.publicURL + "/d/" + token + "/preview.jpg", err
}

// CoreDumpURL returns an address to which the device can post its core dump for the call.
func (u *URLLinks) CoreDumpURL(ctx context.Context, device fleet.DeviceID, call uuid.UUID, ttl time.Duration) (string,
	error) {
	token, err := u.link(ctx, URLLink{Purpose: fleet.LinkCoreDump, Device: device, Call: call}, ttl)
	return u.publicURL + "/u/" + token, err
}

func (u *URLLinks) link(ctx context.Context, l URLLink, ttl time.Duration) (text string, err error) {
	text = token.New()
	l.TokenHash = token.Hash(text)
	l.ExpiresAt = u.now().Add(ttl).UTC()
	if err := u.store.CreateURLLink(ctx, l); err != nil {
		return "", fmt.Errorf("link for device %s: %w", l.Device, err)
	}
	return text, nil
}

// Use returns the link and invalidates it. It does not look up malformed tokens.
func (u *URLLinks) Use(ctx context.Context, text string, purpose fleet.LinkPurpose) (URLLink, error) {
	if !token.WellFormed(text) {
		return URLLink{}, errDeadLink
	}
	l, err := u.store.UseURLLink(ctx, token.Hash(text), purpose, u.now().UTC())
	if errors.Is(err, fleet.ErrNotFound) {
		return URLLink{}, errDeadLink
	}
	return l, err
}

var errDeadLink = fleet.Refuse(fleet.ErrForbidden, "dead_link.upload")

// DeadLink reports whether err means that no valid link of the requested purpose has this
// token.
func DeadLink(err error) bool { return errors.Is(err, errDeadLink) }

// A URLLink is a one-time address given to a device in a url argument and bound to the device
// and the call. Only the hash of its token is stored.
type URLLink struct {
	TokenHash []byte // SHA-256 of the token
	Purpose   fleet.LinkPurpose
	Device    fleet.DeviceID
	Call      uuid.UUID
	Blob      string // LinkPreview: key of the bytes to serve
	MediaType string
	ExpiresAt time.Time
}

// URLLinkStore stores one-time links.
type URLLinkStore interface {
	CreateURLLink(ctx context.Context, l URLLink) error
	// UseURLLink marks the link as used and returns it. It returns ErrNotFound for unknown,
	// used and expired links alike.
	UseURLLink(ctx context.Context, tokenHash []byte, purpose fleet.LinkPurpose, now time.Time) (URLLink, error)
	DeleteExpiredURLLinks(ctx context.Context, before time.Time) error
}
