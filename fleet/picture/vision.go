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

// Limits of uploads by cameras.
const (
	MaxPhotoBytes    = 5 << 20
	MaxQuestionBytes = 4 << 10 // a question is an argument of a call, which has [call.MaxArgumentBytes]
)

// visionTokenAge is how long a token of an earlier connection still works: a device may
// upload a picture while its MQTT connection is being replaced.
const visionTokenAge = 15 * time.Minute

// VisionPath is the path, below the public URL, to which cameras send pictures.
const VisionPath = "/vision/explain"

// VisionTokensOptions configures [VisionTokens]. All but Now are required.
type VisionTokensOptions struct {
	Secret    []byte // of the server; the key is derived from it
	PublicURL string // http://host:port, as devices reach fleetd
	// Connection returns the device's current connection.
	Connection func(fleet.DeviceID) (fleet.Connection, bool)
	Now        func() time.Time // default: time.Now
}

// VisionTokens issues and checks the tokens with which cameras authenticate. A token contains
// no device id. It is valid only for the device that it was issued to, while the connection
// lasts on which the device got it, and for [visionTokenAge] longer. Each connection gets a
// new token, so a revoked device, whose connection ends, soon has no valid one.
type VisionTokens struct {
	o   VisionTokensOptions
	key []byte
}

// NewVisionTokens returns the service.
func NewVisionTokens(o VisionTokensOptions) *VisionTokens {
	if o.Now == nil {
		o.Now = time.Now
	}
	mac := hmac.New(sha256.New, o.Secret)
	mac.Write([]byte("fleetd vision tokens v1"))
	return &VisionTokens{o: o, key: mac.Sum(nil)}
}

const visionMACBytes = 24

// Address returns the address to which the device's camera sends pictures, and the token for
// it.
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

// Check returns nil if the token is valid for the device.
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

// A Photo is a picture that a camera took to answer a question.
type Photo struct {
	Device   fleet.DeviceID
	Question string
	Data     []byte // JPEG or PNG
	// Snapshot is the stored photo. Its call is zero if no call was running.
	Snapshot Snapshot
	AskedBy  fleet.Principal // principal of the call; zero if there is no call
}

// Photo stores the picture that a device's camera took, with the call that runs on the
// device: the device runs only one. A call with another question does not match.
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

// MaxCallPictures is the maximum number of pictures returned for one call.
const MaxCallPictures = 8

// PicturesOfCall returns the pictures that a device uploaded for a call, oldest first: the
// screen, or the camera's pictures. It returns at most [MaxCallPictures].
func (s *Service) PicturesOfCall(ctx context.Context, call uuid.UUID) ([]CallPicture, error) {
	shots, err := s.o.Store.SnapshotsOfCall(ctx, call, MaxCallPictures)
	if err != nil {
		return nil, err
	}
	var all []CallPicture
	for _, shot := range shots {
		data, err := s.o.Blobs.Get(ctx, shot.Blob)
		if errors.Is(err, fleet.ErrNotFound) {
			continue // its file was deleted
		}
		if err != nil {
			return nil, err
		}
		all = append(all, CallPicture{shot, data})
	}
	return all, nil
}
