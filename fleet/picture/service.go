package picture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// Options configures [Service]. Links, Store, Blobs and PublicURL are required.
type Options struct {
	Links     URLLinkStore
	Store     Store
	Blobs     fleet.Blobs
	PublicURL string           // http://host:port, as devices reach fleetd
	Presences *fleet.Presences // receives uploads as evidence; may be nil
	// Running returns the call that runs on a device, see [call.Service.Running]. If it is
	// nil, camera pictures are stored for the device without a call.
	Running func(fleet.DeviceID) (fleet.RunningCall, bool)
	Events  *fleet.Events // nil publishes no events
	Log     *slog.Logger
	Now     func() time.Time // default: time.Now
}

// Service exchanges pictures with devices over one-time links: the screen that a device
// uploads for a call, and the picture that it fetches to show.
type Service struct {
	*URLLinks
	o        Options
	decoding chan struct{} // one picture at a time: decoding a large one needs 100 MB
}

// New returns the service.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{URLLinks: NewURLLinks(o.Links, o.PublicURL, o.Now), o: o, decoding: make(chan struct{}, 1)}
}

// Receive stores the picture that a device uploads with the token. It reads the body only
// after it has accepted the token and used it up; a device does not retry a broken upload.
func (s *Service) Receive(ctx context.Context, token string, body func() (io.Reader, error)) (Snapshot, error) {
	l, err := s.Use(ctx, token, fleet.LinkUpload)
	if err != nil {
		return Snapshot{}, err
	}
	r, err := body()
	if err != nil {
		return Snapshot{}, err
	}
	data, err := readPicture(r, MaxSnapshotBytes)
	if err != nil {
		return Snapshot{}, err
	}
	img, mediaType, err := s.decode(ctx, data)
	if err != nil {
		return Snapshot{}, err
	}
	return s.keep(ctx, l, Snapshot{Kind: SnapshotScreen}, data, mediaType, img.Bounds().Size())
}

// keep stores the picture as shot. The caller sets only kind and question; keep fills in the
// rest.
func (s *Service) keep(ctx context.Context, l URLLink, shot Snapshot, data []byte, mediaType string,
	size image.Point) (Snapshot, error) {
	key, err := s.o.Blobs.Put(ctx, data)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of device %s: %w", l.Device, err)
	}
	shot.ID, shot.Device, shot.Call, shot.Blob, shot.MediaType = uuid.Must(uuid.NewV7()), l.Device, l.Call, key, mediaType
	shot.Width, shot.Height, shot.Size, shot.CreatedAt = size.X, size.Y, int64(len(data)), s.o.Now().UTC()
	if err := s.o.Store.CreateSnapshot(ctx, shot); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of device %s: %w", l.Device, err)
	}
	if s.o.Presences != nil {
		s.o.Presences.Observed(l.Device, fleet.Evidence{At: shot.CreatedAt, Kind: fleet.EvidenceUpload,
			Detail: fmt.Sprintf("%s, %d bytes", mediaType, len(data)),
			Reason: fleet.Because(fleet.ReasonPictureUploaded, "media_type", mediaType, "size_bytes", len(data))})
	}
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventSnapshot, At: shot.CreatedAt, Device: l.Device,
		Subject: shot.ID.String()})
	return shot, nil
}

// Picture returns a stored snapshot with its bytes.
func (s *Service) Picture(ctx context.Context, id uuid.UUID) (Snapshot, []byte, error) {
	shot, err := s.o.Store.Snapshot(ctx, id)
	if err != nil {
		return Snapshot{}, nil, err
	}
	data, err := s.o.Blobs.Get(ctx, shot.Blob)
	return shot, data, err
}

// FetchPreview returns the JPEG for the token, once.
func (s *Service) FetchPreview(ctx context.Context, token string) ([]byte, error) {
	l, err := s.Use(ctx, token, fleet.LinkPreview)
	if err != nil {
		return nil, err
	}
	return s.o.Blobs.Get(ctx, l.Blob)
}

// Preview scales an operator's picture for a device's screen and stores it. The returned key
// works in [Service.PreviewURL] for any number of devices.
func (s *Service) Preview(ctx context.Context, r io.Reader, screen image.Point) (picture string, err error) {
	data, err := readPicture(r, MaxSnapshotBytes)
	if err != nil {
		return "", err
	}
	img, _, err := s.decode(ctx, data)
	if err != nil {
		return "", err
	}
	if data, err = encodePreview(img, screen); err != nil {
		return "", err
	}
	return s.o.Blobs.Put(ctx, data)
}

// PreviewFor is [Service.Preview] for the screen of a device, whose size it takes from a
// snapshot if there is one.
func (s *Service) PreviewFor(ctx context.Context, device fleet.DeviceID, r io.Reader) (picture string, err error) {
	var screen image.Point
	if shot, err := Newest(ctx, s.o.Store, device, SnapshotScreen); err == nil {
		screen = image.Pt(shot.Width, shot.Height)
	}
	return s.Preview(ctx, r, screen)
}

// PreviewOf returns a preview of a snapshot of the same device. It refuses another device's
// snapshot, because a principal that may call one device need not see the other.
func (s *Service) PreviewOf(ctx context.Context, device fleet.DeviceID, snapshot uuid.UUID) (picture string,
	err error) {
	shot, data, err := s.Picture(ctx, snapshot)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return "", fleet.Refuse(fleet.ErrInvalid, "unknown_snapshot", "snapshot", snapshot).At("picture")
	case err != nil:
		return "", err
	case shot.Device != device:
		return "", fleet.Refuse(fleet.ErrInvalid, "snapshot_of_other_device").At("picture")
	}
	return s.PreviewFor(ctx, device, bytes.NewReader(data))
}

// Run deletes expired links until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.o.Links.DeleteExpiredURLLinks(ctx, s.o.Now().UTC()); err != nil && ctx.Err() == nil {
				s.o.Log.Warn("could not delete expired links", "err", err)
			}
		}
	}
}

// decode waits for its turn and decodes the picture.
func (s *Service) decode(ctx context.Context, data []byte) (image.Image, string, error) {
	select {
	case s.decoding <- struct{}{}:
		defer func() { <-s.decoding }()
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	return decodePicture(data)
}

// SnapshotKind is what a picture shows.
type SnapshotKind string

const (
	SnapshotScreen SnapshotKind = "screen" // the device's screen
	SnapshotCamera SnapshotKind = "camera" // its camera's picture, to answer a question
)

// A Snapshot is a picture that a device uploaded.
type Snapshot struct {
	ID            uuid.UUID
	Kind          SnapshotKind
	Device        fleet.DeviceID
	Call          uuid.UUID // call that it was taken for; zero if a camera sent it while no call ran
	Question      string    // for a camera's picture; foreign text
	Blob          string    // SHA-256 of the bytes, hex
	MediaType     string    // "image/jpeg" or "image/png", by content
	Width, Height int
	Size          int64
	CreatedAt     time.Time
}

// A Filter selects pictures of a device, newest first, or of a fan-out: of each of its devices the
// newest that a call of the fan-out took, by device.
type Filter struct {
	Device fleet.DeviceID
	FanOut uuid.UUID // instead of Device
	Kind   SnapshotKind
	Since  time.Time // from this time on; zero: no limit
	Until  time.Time // before this time; zero: no limit
	Limit  int
	Cursor string
}

// Newest returns a device's newest picture of a kind, or [fleet.ErrNotFound].
func Newest(ctx context.Context, records Records, device fleet.DeviceID, kind SnapshotKind) (Snapshot, error) {
	found, err := records.Snapshots(ctx, Filter{Device: device, Kind: kind, Limit: 1})
	if err == nil && len(found.Items) == 0 {
		err = fleet.ErrNotFound
	}
	if err != nil {
		return Snapshot{}, err
	}
	return found.Items[0], nil
}

// Records reads stored snapshots.
type Records interface {
	Snapshot(ctx context.Context, id uuid.UUID) (Snapshot, error)
	SnapshotOfCall(ctx context.Context, call uuid.UUID) (Snapshot, error)
	SnapshotsOfCall(ctx context.Context, call uuid.UUID, limit int) ([]Snapshot, error) // oldest first
	// Snapshots lists the pictures that match the filter, in the order that [Filter] describes.
	Snapshots(ctx context.Context, f Filter) (fleet.Page[Snapshot], error)
	// SnapshotsAround returns the neighbours of a picture in the list of the filter; nil if it has none.
	SnapshotsAround(ctx context.Context, f Filter, s Snapshot) (before, after *Snapshot, err error)
	// Callers returns who made the pictures' calls, by call. Some may be missing.
	Callers(ctx context.Context, shots []Snapshot) (map[uuid.UUID]fleet.Principal, error)
	LatestSnapshots(ctx context.Context, devices []fleet.DeviceID) (map[fleet.DeviceID]Snapshot,
		error) // only for devices that have one
}

// Store stores snapshots.
type Store interface {
	Records
	CreateSnapshot(ctx context.Context, s Snapshot) error
}
