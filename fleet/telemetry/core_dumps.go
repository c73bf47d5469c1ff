package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/picture"
)

// VitalsReader returns the vitals that devices last reported.
type VitalsReader interface {
	Vitals(ctx context.Context, device fleet.DeviceID) (Vitals, error) // fleet.ErrNotFound: it never reported any
}

// CoreDumpsOptions configures [CoreDumps]. Links, Store, Blobs, Calls, Devices
// and Inventories are required.
type CoreDumpsOptions struct {
	Links       picture.URLLinkStore
	Store       CoreDumpStore
	Blobs       CoreDumpBlobs
	Calls       *call.Service
	Devices     fleet.DeviceStore
	Inventories fleet.InventoryStore
	Vitals      VitalsReader     // nil: no device reports vitals, and fleetd fetches no core dumps automatically
	Presences   *fleet.Presences // receives uploads as evidence; may be nil
	Events      *fleet.Events    // nil: no events are published
	Collect     bool             // fetch the core dumps that Observe saw; otherwise only operators fetch them
	Keep        time.Duration    // 0 keeps core dumps forever
	Log         *slog.Logger
	Now         func() time.Time // default: time.Now
}

// CoreDumpBlobs stores the bytes.
type CoreDumpBlobs interface {
	fleet.Blobs
	DeleteFile(ctx context.Context, key string) error
}

// CoreDumps fetches core dumps from devices' flash: for an operator, and automatically once per
// crash ([CoreDumps.Run]).
type CoreDumps struct {
	o     CoreDumpsOptions
	links *picture.URLLinks

	mu    sync.Mutex
	tries map[fleet.DeviceID]*coreDumpTry
}

// NewCoreDumps returns the service.
func NewCoreDumps(o CoreDumpsOptions) *CoreDumps {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = new(fleet.Events)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &CoreDumps{o: o, links: picture.NewURLLinks(o.Links, "", o.Now),
		tries: make(map[fleet.DeviceID]*coreDumpTry)}
}

// A CoreDumpInfo is a device's description of its core dump.
type CoreDumpInfo struct {
	Present bool   `json:"present"`
	Size    int64  `json:"size"`
	Summary string `json:"summary"`
}

// maxSummary bounds the device's summary of its crash, in bytes.
const maxSummary = 2000

func readCoreDumpInfo(result json.RawMessage) (info CoreDumpInfo, ok bool) {
	ok = json.Unmarshal([]byte(fleet.ResultText(result)), &info) == nil
	info.Summary = fleet.CleanText(info.Summary, maxSummary)
	return info, ok
}

// Ask queries the device for its core dump. It fails with [fleet.ErrConflict] (no_core_dump) if
// the device has no core dump. It does not query a device without that tool.
func (s *CoreDumps) Ask(ctx context.Context, actor fleet.Principal, device fleet.DeviceID) error {
	if offered, err := s.offers(ctx, device, fleet.ToolCoreDumpInfo); err != nil || !offered {
		return err
	}
	c, err := s.o.Calls.Make(ctx, call.Request{Actor: actor, Device: device, Tool: fleet.ToolCoreDumpInfo})
	if err != nil {
		return err
	}
	if info, ok := readCoreDumpInfo(c.Result); c.State == fleet.CallSucceeded && ok && !info.Present {
		return fleet.Refuse(fleet.ErrConflict, "no_core_dump")
	}
	return nil // the same error prevents the upload, whose record contains it
}

// UploadRequest returns the call that makes the device send its core dump.
func (s *CoreDumps) UploadRequest(actor fleet.Principal, device fleet.DeviceID, erase bool) call.Request {
	return call.Request{Actor: actor, Device: device, Tool: fleet.ToolCoreDumpUpload,
		Arguments: json.RawMessage(fmt.Sprintf(`{"erase":%t}`, erase))}
}

// Fetch makes the device send its core dump, and, if erase is set, erase it after its arrival.
// It returns the call of the upload.
func (s *CoreDumps) Fetch(ctx context.Context, actor fleet.Principal, device fleet.DeviceID, erase bool) (fleet.Call,
	error) {
	if device.IsProgram() {
		return fleet.Call{}, fleet.ErrNotABoard(device)
	}
	if err := s.Ask(ctx, actor, device); err != nil {
		return fleet.Call{}, err
	}
	return s.o.Calls.Make(ctx, s.UploadRequest(actor, device, erase))
}

func (s *CoreDumps) offers(ctx context.Context, device fleet.DeviceID, tool string) (bool, error) {
	d, err := s.o.Devices.Device(ctx, device)
	if err != nil || d.InventoryID == "" {
		return false, err
	}
	inv, err := s.o.Inventories.Inventory(ctx, d.InventoryID)
	if err != nil {
		return false, err
	}
	_, ok := inv.Tool(tool)
	return ok, nil
}

// Receive stores the core dump that a device uploads with the token. It calls body for the
// bytes only after it has found the token valid, which uses the token up.
func (s *CoreDumps) Receive(ctx context.Context, token string, body func() (io.Reader, error)) (CoreDump, error) {
	l, err := s.links.Use(ctx, token, fleet.LinkCoreDump)
	if err != nil {
		return CoreDump{}, err
	}
	r, err := body()
	if err != nil {
		return CoreDump{}, err
	}
	data, err := readCoreDump(r)
	if err != nil {
		return CoreDump{}, err
	}
	return s.keep(ctx, l, data)
}

func readCoreDump(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxCoreDumpBytes+1))
	var refused *fleet.Error
	switch {
	case len(data) > MaxCoreDumpBytes:
		return nil, fleet.Refuse(fleet.ErrInvalid, "too_large.core_dump", "limit", MaxCoreDumpBytes>>10)
	case errors.As(err, &refused):
		return nil, err
	case err != nil:
		return nil, fleet.Refuse(fleet.ErrInvalid, "broken_upload.bytes", "n", len(data))
	case len(data) == 0:
		return nil, fleet.Refuse(fleet.ErrInvalid, "empty_upload")
	}
	return data, nil
}

func (s *CoreDumps) keep(ctx context.Context, l picture.URLLink, data []byte) (CoreDump, error) {
	key, err := s.o.Blobs.Put(ctx, data)
	if err != nil {
		return CoreDump{}, fmt.Errorf("core dump of device %s: %w", l.Device, err)
	}
	c := CoreDump{ID: uuid.Must(uuid.NewV7()), Device: l.Device, Call: l.Call, Blob: key, Size: int64(len(data)),
		CreatedAt: s.o.Now().UTC()}
	if err := s.describe(ctx, &c, data); err != nil {
		return CoreDump{}, err
	}
	err = s.o.Store.CreateCoreDump(ctx, c)
	if err != nil && !errors.Is(err, fleet.ErrConflict) { // a duplicate arrived, too: the device may erase it
		return CoreDump{}, err
	}
	if s.o.Presences != nil {
		s.o.Presences.Observed(l.Device, fleet.Evidence{At: c.CreatedAt, Kind: fleet.EvidenceUpload,
			Detail: fmt.Sprintf("core dump, %d bytes", len(data)),
			Reason: fleet.Because(fleet.ReasonCoreDumpUploaded, "size_bytes", len(data))})
	}
	if err == nil {
		s.o.Events.Publish(fleet.Event{Kind: fleet.EventCoreDump, At: c.CreatedAt, Device: l.Device, Subject: c.ID.String()})
	}
	return c, nil
}

// describe adds data about the crash that is not in the bytes.
func (s *CoreDumps) describe(ctx context.Context, c *CoreDump, data []byte) error {
	if err := s.describeBuild(ctx, c, buildInDump(data)); err != nil {
		return err
	}
	if s.o.Vitals != nil {
		v, err := s.o.Vitals.Vitals(ctx, c.Device)
		if err != nil && !errors.Is(err, fleet.ErrNotFound) {
			return err
		}
		c.ResetReason, c.Boots = v.ResetReason, v.Boots
	}
	return s.describeSummary(ctx, c)
}

// summaryTTL is how long a device's summary of a core dump is used for the upload that follows.
const summaryTTL = 15 * time.Minute

func (s *CoreDumps) describeSummary(ctx context.Context, c *CoreDump) error {
	asked, err := s.o.Calls.List(ctx, call.Filter{Device: c.Device, Tool: fleet.ToolCoreDumpInfo,
		States: []fleet.CallState{fleet.CallSucceeded},
		Since:  c.CreatedAt.Add(-summaryTTL), Limit: 1})
	if err != nil {
		return err
	}
	for _, call := range asked.Items {
		if info, ok := readCoreDumpInfo(call.Result); ok && info.Present && info.Size == c.Size {
			c.Summary = info.Summary
		}
	}
	return nil
}

// describeBuild sets the crashed build. named is the hash in the core dump, often only a prefix.
func (s *CoreDumps) describeBuild(ctx context.Context, c *CoreDump, named string) error {
	d, err := s.o.Devices.Device(ctx, c.Device)
	if err != nil {
		return err
	}
	if named == "" {
		if c.ELFSHA256, c.Version = d.ELFSHA256, d.Version; d.ELFSHA256 != "" {
			c.BuildFrom = BuildFromDevice
		}
		return nil
	}
	c.ELFSHA256, c.BuildFrom = named, BuildFromDump
	ran, err := s.o.Devices.FirmwareHistory(ctx, c.Device)
	if err != nil {
		return err
	}
	for _, f := range append([]fleet.FirmwareRecord{{ELFSHA256: d.ELFSHA256, Version: d.Version}}, ran...) {
		if strings.HasPrefix(f.ELFSHA256, named) {
			c.ELFSHA256, c.Version = f.ELFSHA256, f.Version
			return nil
		}
	}
	// A build that crashes at its start never polls: only its image is on record.
	builds, err := s.o.Store.BuildsOf(ctx, named, 2)
	if len(builds) == 1 {
		c.ELFSHA256 = builds[0]
	}
	return err
}

// CoreDump returns the metadata of a core dump, or [fleet.ErrNotFound].
func (s *CoreDumps) CoreDump(ctx context.Context, id uuid.UUID) (CoreDump, error) {
	return s.o.Store.CoreDump(ctx, id)
}

// CoreDumps returns the core dumps of a device, newest first.
func (s *CoreDumps) CoreDumps(ctx context.Context, device fleet.DeviceID, limit int) ([]CoreDump, error) {
	return s.o.Store.CoreDumps(ctx, device, limit)
}

// Content returns a core dump with its bytes. Only operators of the device may read these,
// because they are the device's memory.
func (s *CoreDumps) Content(ctx context.Context, by fleet.Principal, id uuid.UUID) (CoreDump, []byte, error) {
	if err := by.MaySomewhere(fleet.RoleOperator, "read_core_dump"); err != nil {
		return CoreDump{}, nil, err
	}
	c, err := s.o.Store.CoreDump(ctx, id)
	if err != nil {
		return CoreDump{}, nil, err
	}
	if err := by.MayOnDevice(ctx, s.o.Devices.Device, c.Device, fleet.RoleOperator, "read_core_dump"); err != nil {
		return CoreDump{}, nil, err
	}
	data, err := s.o.Blobs.Get(ctx, c.Blob)
	return c, data, err
}

// Delete deletes a core dump, and its bytes unless another record references them.
func (s *CoreDumps) Delete(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
	if err := by.MaySomewhere(fleet.RoleOperator, "delete_core_dump"); err != nil {
		return err
	}
	c, err := s.o.Store.CoreDump(ctx, id)
	if err != nil {
		return err
	}
	if err := by.MayOnDevice(ctx, s.o.Devices.Device, c.Device, fleet.RoleOperator, "delete_core_dump"); err != nil {
		return err
	}
	unused, err := s.o.Store.DeleteCoreDump(ctx, by, id)
	if err != nil {
		return err
	}
	if unused {
		s.forgetBlob(ctx, c.Blob)
	}
	s.o.Events.Publish(fleet.Event{Kind: fleet.EventCoreDump, At: s.o.Now().UTC(), Device: c.Device, Subject: id.String()})
	return nil
}

func (s *CoreDumps) forgetBlob(ctx context.Context, blob string) {
	if err := s.o.Blobs.DeleteFile(ctx, blob); err != nil {
		s.o.Log.Warn("bytes of a deleted core dump stay", "blob", blob, "err", err)
	}
}
