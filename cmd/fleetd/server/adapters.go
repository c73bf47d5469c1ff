package server

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/rollout"
	"fleetd/fleet/telemetry"
)

// brokerDevices gives the broker access to the domain.
type brokerDevices struct{ *Server }

func (d brokerDevices) Authenticate(clientID, username string, password []byte, remoteAddr string) (fleet.DeviceID,
	error) {
	return d.Enrolments.Authenticate(clientID, username, password, remoteAddr)
}

func (d brokerDevices) AuthenticateToken(id fleet.DeviceID, clientID, token, remoteAddr string) (string, error) {
	return d.Enrolments.AuthenticateToken(id, clientID, token, remoteAddr)
}

func (d brokerDevices) Connected(c fleet.Connection) {
	d.Presences.Connected(c)
	if c.Transport != "ws" { // devices with ws connect only for conversations
		d.reconnects.Connected(c.Device, c.At)
	}
	d.Enrolments.Connected(c)
}

func (d brokerDevices) Adopted(c fleet.Connection) {
	d.Presences.Adopted(c)
	d.Enrolments.Connected(c)
}

func (d brokerDevices) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	d.Presences.Disconnected(c, clean, cause)
}

func (d brokerDevices) Seen(id fleet.DeviceID) {
	d.Presences.Seen(id)
	d.Enrolments.Heard(id)
}

func (d brokerDevices) Responded(id fleet.DeviceID) { d.Presences.Responded(id) }

func (d brokerDevices) Unresponsive(c fleet.Connection, cause fleet.Cause) {
	d.Presences.Unresponsive(c, cause)
}

func (d brokerDevices) AnsweredLate(id fleet.DeviceID, rpcID int32, as func(tool string) fleet.Answer) bool {
	return d.Calls.AnsweredLate(id, rpcID, as)
}

func (d brokerDevices) IsSoftware(id fleet.DeviceID) bool { return d.Enrolments.Running(id).Software }

func (d brokerDevices) NeedsListing(id fleet.DeviceID) bool {
	return !d.Enrolments.Running(id).InventoryFresh
}

// SaveListing adds the build that the device reported, so the same build need
// not be listed again.
func (d brokerDevices) SaveListing(ctx context.Context, l fleet.ToolListing) error {
	running := d.Enrolments.Running(l.Device)
	l.ELFSHA256, l.Version = running.ELFSHA256, running.Version
	err := d.Devices.Listed(ctx, l)
	if errors.Is(err, fleet.ErrNotFound) { // a device that joined just now
		if err = d.Enrolments.Stored(ctx, l.Device); err == nil {
			err = d.Devices.Listed(ctx, l)
		}
	}
	if err != nil {
		return err
	}
	if !l.Partial {
		d.cameras.note(l.ELFSHA256, l.Inventory.Tools)
		d.Enrolments.Listed(l.Device, l.ELFSHA256, l.At)
	}
	d.engine.Observe(rollout.OfListing(l.Device, l))
	return nil
}

// Notified handles notifications of the included firmware and of custom boards;
// stock firmware sends none.
func (d brokerDevices) Notified(id fleet.DeviceID, method string, params json.RawMessage) {
	d.Reports.Notified(id, method, params)
}

// kick ends a device's connection.
func (s *Server) kick(id fleet.DeviceID, cause fleet.Cause) {
	s.targets.Forget(id)
	s.broker.Kick(id, cause)
}

// connection returns the device's current connection.
func (s *Server) connection(id fleet.DeviceID) (fleet.Connection, bool) {
	return s.broker.Connection(id)
}

// ping checks for enrolment that the device's connection is alive.
func (s *Server) ping(ctx context.Context, id fleet.DeviceID) (fleet.Connection, bool) {
	epoch, err := s.broker.Ping(ctx, id)
	c, ok := s.broker.Connection(id)
	return c, ok && err == nil && c.Epoch == epoch
}

// evidence passes observations of devices to the campaigns.
func (s *Server) evidence(id fleet.DeviceID, e fleet.Evidence) {
	s.engine.Observe(rollout.OfDevice(id, e))
}

func (s *Server) retiring(id fleet.DeviceID) {
	s.Enrolments.Retired(id)
	s.engine.Observe(rollout.OfRetirement(id))
}

func (s *Server) upgradeReported(device fleet.DeviceID, deployment uuid.UUID, attempt int, j telemetry.Job) {
	s.engine.Observe(rollout.OfJob(device, deployment, attempt, j))
}

// register stores for campaigns what devices reported.
type register struct {
	*enrolment.Service
	reports *telemetry.Reports
}

func (r register) Stored(ctx context.Context, ids ...fleet.DeviceID) error {
	if err := r.Service.Stored(ctx, ids...); err != nil {
		return err
	}
	return r.reports.Stored(ctx)
}

// rollBack starts the rollback that an abort rule or an operator requested when
// a campaign stopped.
func (s *Server) rollBack(ctx context.Context, campaign uuid.UUID) error {
	return s.Campaigns.RollBackAborted(ctx, campaign)
}

// observed is called with every outcome of a call.
func (s *Server) observed(c *fleet.Call) {
	s.metrics.observe(c)
	s.Reports.Called(c)
}

// crashWatch passes vitals to the detection of crashes as they are stored.
type crashWatch struct {
	telemetry.ReportStore
	server *Server
}

func (w crashWatch) SaveVitals(ctx context.Context, latest map[fleet.DeviceID]telemetry.Vitals) error {
	if err := w.ReportStore.SaveVitals(ctx, latest); err != nil {
		return err
	}
	w.server.coreDumps.Observe(latest)
	return nil
}

func (s *Server) logged(id fleet.DeviceID, params json.RawMessage) {
	s.logs.OnLog(id, params)
}

// rightsNow is the authority of schedules, which are opened before it.
type rightsNow struct{ s *Server }

func (r rightsNow) PrincipalNow(ctx context.Context, p fleet.Principal) (fleet.Principal, error) {
	return r.s.authority.PrincipalNow(ctx, p)
}
