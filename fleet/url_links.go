package fleet

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// URLLinks makes one-time addresses for the url arguments of calls, and takes
// them out of use.
//
// A device sends no name and no secret with its requests. The link alone says
// who it is: unguessable, for one use and purpose, and only for minutes.
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

var _ URLMaker = (*URLLinks)(nil)

// UploadURL makes an address to which the device can post one picture for the call.
func (u *URLLinks) UploadURL(ctx context.Context, device DeviceID, call uuid.UUID, ttl time.Duration) (string, error) {
	token, err := u.link(ctx, URLLink{Purpose: LinkUpload, Device: device, Call: call}, ttl)
	return u.publicURL + "/u/" + token, err
}

// PreviewURL makes an address from which the device can fetch the picture once,
// which [Snapshots.Preview] stored.
func (u *URLLinks) PreviewURL(ctx context.Context, device DeviceID, call uuid.UUID, picture string, ttl time.Duration) (string, error) {
	token, err := u.link(ctx, URLLink{Purpose: LinkPreview, Device: device, Call: call, Blob: picture, MediaType: "image/jpeg"}, ttl)
	return u.publicURL + "/d/" + token + "/preview.jpg", err
}

// CoreDumpURL makes an address to which the device can post its core dump for the call.
func (u *URLLinks) CoreDumpURL(ctx context.Context, device DeviceID, call uuid.UUID, ttl time.Duration) (string, error) {
	token, err := u.link(ctx, URLLink{Purpose: LinkCoreDump, Device: device, Call: call}, ttl)
	return u.publicURL + "/u/" + token, err
}

func (u *URLLinks) link(ctx context.Context, l URLLink, ttl time.Duration) (token string, err error) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	token = base64.RawURLEncoding.EncodeToString(secret)
	l.TokenHash = tokenHash(token)
	l.ExpiresAt = u.now().Add(ttl).UTC()
	if err := u.store.CreateURLLink(ctx, l); err != nil {
		return "", fmt.Errorf("link for device %s: %w", l.Device, err)
	}
	return token, nil
}

// use takes the link out of use. Tokens in another form are not looked up.
func (u *URLLinks) use(ctx context.Context, token string, purpose LinkPurpose) (URLLink, error) {
	const form = 43 // 32 bytes in base64
	if len(token) != form {
		return URLLink{}, errDeadLink
	}
	l, err := u.store.UseURLLink(ctx, tokenHash(token), purpose, u.now().UTC())
	if errors.Is(err, ErrNotFound) {
		return URLLink{}, errDeadLink
	}
	return l, err
}

var errDeadLink = Errorf(ErrForbidden, "dead_link", "this link is unknown, used or expired")

// DeadLink reports whether err says that no link of the purpose asked for has
// this token.
func DeadLink(err error) bool { return errors.Is(err, errDeadLink) }

func tokenHash(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}
