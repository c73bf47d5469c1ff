package picture

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Limits of what a camera sends.
const (
	MaxPhotoBytes    = 5 << 20
	MaxQuestionBytes = 4 << 10 // a question is an argument of a call, which has [call.MaxArgumentBytes]
)

// visionTokenAge is how long a token of an earlier connection works: a device
// may upload a picture while its MQTT connection is being replaced.
const visionTokenAge = 15 * time.Minute

// VisionPath is where cameras send pictures, below the public URL.
const VisionPath = "/vision/explain"

// VisionTokensOptions configures [VisionTokens]. All but Now are required.
type VisionTokensOptions struct {
	Secret    []byte // of the server; the key is derived from it
	PublicURL string // http://host:port, as devices reach fleetd
	// Connection is the one that the device has now.
	Connection func(fleet.DeviceID) (fleet.Connection, bool)
	Now        func() time.Time // default: time.Now
}

// VisionTokens makes and checks what a device's camera authenticates with.
// A token names no device: it is good for the one that it was made for, while
// the connection lasts on which the device got it, and [visionTokenAge] longer.
// So each connection brings another, and a device that is revoked, which ends
// its connection, soon has none.
type VisionTokens struct {
	o   VisionTokensOptions
	key []byte
}

// NewVisionTokens makes the service.
func NewVisionTokens(o VisionTokensOptions) *VisionTokens {
	if o.Now == nil {
		o.Now = time.Now
	}
	mac := hmac.New(sha256.New, o.Secret)
	mac.Write([]byte("fleetd vision tokens v1"))
	return &VisionTokens{o: o, key: mac.Sum(nil)}
}

const visionMACBytes = 24

// Address is where the device's camera is to send pictures, and the token that
// it sends with them.
func (v *VisionTokens) Address(device fleet.DeviceID) (url, token string) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(v.o.Now().UnixMilli()))
	return strings.TrimSuffix(v.o.PublicURL, "/") + VisionPath,
		base64.RawURLEncoding.EncodeToString(append(b[:], v.mac(device, b[:])...))
}

func (v *VisionTokens) mac(device fleet.DeviceID, made []byte) []byte {
	mac := hmac.New(sha256.New, v.key)
	mac.Write(made)
	mac.Write([]byte(device))
	return mac.Sum(nil)[:visionMACBytes]
}

var errVisionToken = fleet.Refuse(fleet.ErrForbidden, "invalid_vision_token")

// Check returns nil if the token is a good one of the device.
func (v *VisionTokens) Check(device fleet.DeviceID, token string) error {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 8+visionMACBytes || !hmac.Equal(b[8:], v.mac(device, b[:8])) {
		return errVisionToken
	}
	made := time.UnixMilli(int64(binary.BigEndian.Uint64(b)))
	if v.o.Now().Sub(made) < visionTokenAge {
		return nil
	}
	if c, ok := v.o.Connection(device); ok && !made.Before(c.At.Truncate(time.Millisecond)) {
		return nil
	}
	return errVisionToken
}

// A Photo is what a camera took to answer a question.
type Photo struct {
	Device   fleet.DeviceID
	Question string
	Data     []byte // JPEG or PNG
	// Snapshot is the photo on record. Its call is zero if none was running.
	Snapshot Snapshot
	AskedBy  fleet.Principal // who made the call; zero without one
}

// Photo keeps the picture that a device's camera took, with the call that runs
// on the device: the device has only one. A call that asked another question
// is not that call.
func (s *Service) Photo(ctx context.Context, device fleet.DeviceID, question string, picture io.Reader) (Photo, error) {
	data, err := readPicture(picture, MaxPhotoBytes)
	if err != nil {
		return Photo{}, err
	}
	img, mediaType, err := s.decode(ctx, data)
	if err != nil {
		return Photo{}, err
	}
	l, by := URLLink{Device: device}, fleet.Principal{}
	if s.o.Running != nil {
		if c, ok := s.o.Running(device); ok && c.Asks(question) {
			l.Call, by = c.ID, c.Actor
		}
	}
	p := Photo{Device: device, Question: question, Data: data, AskedBy: by}
	p.Snapshot, err = s.keep(ctx, l, Snapshot{Kind: SnapshotCamera, Question: fleet.CleanText(question, MaxQuestionBytes)},
		data, mediaType, img.Bounds().Size())
	return p, err
}

// A CallPicture is a snapshot with its bytes.
type CallPicture struct {
	Snapshot
	Data []byte
}

// MaxCallPictures bounds the pictures that are given for one call.
const MaxCallPictures = 8

// PicturesOfCall returns what a device uploaded for a call, oldest first: the
// picture of its screen, or what its camera took. At most [MaxCallPictures].
func (s *Service) PicturesOfCall(ctx context.Context, call uuid.UUID) ([]CallPicture, error) {
	shots, err := s.o.Store.SnapshotsOfCall(ctx, call, MaxCallPictures)
	if err != nil {
		return nil, err
	}
	var all []CallPicture
	for _, shot := range shots {
		data, err := s.o.Blobs.Get(ctx, shot.Blob)
		if errors.Is(err, fleet.ErrNotFound) {
			continue // its file was removed
		}
		if err != nil {
			return nil, err
		}
		all = append(all, CallPicture{shot, data})
	}
	return all, nil
}
