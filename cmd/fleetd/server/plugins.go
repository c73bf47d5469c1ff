package server

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/plugin"
	"fleetd/mcp"
	"fleetd/mcp/gateway"
	"fleetd/mcp/host"
	"fleetd/web/ui"
)

// openPlugins makes the host of plug-ins and what manages them. They start with the server.
func (s *Server) openPlugins(ctx context.Context, sealer plugin.Sealer, secret []byte) error {
	key, err := hkdf.Key(sha256.New, secret, nil, "definitions of plug-ins", sha256.Size)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // the guard judges the address of the plug-in itself
	s.host = host.New(host.Options{Devices: hostDevices{s}, Node: s.cfg.NodeName, Version: s.cfg.Version, Log: s.log,
		HTTP:     s.outbound.Client(0, transport), // streams stay open
		StateDir: filepath.Join(s.cfg.DataDir, "plugins"), OwnUsers: os.Geteuid() == 0,
		Key: key})
	s.Plugins = plugin.New(plugin.Options{Directory: s.cfg.PluginsDir, Store: s.store, Sealer: sealer, Runner: s.host,
		Events: s.Events, Log: s.log})
	if err := s.retireLostPlugins(ctx); err != nil {
		return err
	}
	s.stages.add("plug-ins", s.host.Run)
	s.stages.add("definitions of plug-ins", s.Plugins.Run)
	return nil
}

// retireLostPlugins loads the definitions, and retires the devices of plug-ins that were removed
// while fleetd was away.
func (s *Server) retireLostPlugins(ctx context.Context) error {
	if err := s.Plugins.Load(ctx); err != nil {
		return err
	}
	stored, err := s.store.Programs(ctx, fleet.DevicePlugin)
	if err != nil {
		return err
	}
	for _, id := range stored {
		if s.Plugins.Defines(id) {
			continue
		}
		if err := s.store.RetireProgram(ctx, id, time.Now().UTC()); err != nil {
			return err
		}
	}
	return nil
}

// programServer returns what a connected program says about itself.
func (s *Server) programServer(id fleet.DeviceID) (p ui.ProgramServer, connected bool) {
	session := s.host.Server(id)
	if session == nil {
		return p, false
	}
	if r := session.InitializeResult(); r != nil {
		p.Protocol = fleet.CleanText(r.ProtocolVersion, 40)
		if r.ServerInfo != nil {
			p.Name, p.Version = fleet.CleanText(r.ServerInfo.Name, 100), fleet.CleanText(r.ServerInfo.Version, 60)
		}
	}
	return p, true
}

// hostDevices gives the host access to the domain.
type hostDevices struct{ *Server }

func (d hostDevices) SaveProgram(ctx context.Context, id fleet.DeviceID, kind fleet.DeviceKind, version string) error {
	if err := d.store.SaveProgram(ctx, id, kind, version, time.Now().UTC()); err != nil {
		return err
	}
	d.programChanged(id)
	return nil
}

func (d hostDevices) RetireProgram(ctx context.Context, id fleet.DeviceID) error {
	if err := d.store.RetireProgram(ctx, id, time.Now().UTC()); err != nil {
		return err
	}
	if err := d.ToolQuarantines.Ended(ctx, id); err != nil {
		d.log.Warn("quarantines of tools not reloaded", "device", id, "err", err) // they are soon
	}
	d.programChanged(id)
	return nil
}

func (d hostDevices) programChanged(id fleet.DeviceID) {
	d.targets.Forget(id)
	d.Events.Publish(fleet.Event{Kind: fleet.EventDevice, At: time.Now().UTC(), Device: id})
}

func (d hostDevices) Connected(c fleet.Connection) { d.Presences.Connected(c) }

func (d hostDevices) Disconnected(c fleet.Connection, clean bool, cause fleet.Cause) {
	d.Presences.Disconnected(c, clean, cause)
}

func (d hostDevices) Unresponsive(c fleet.Connection, cause fleet.Cause) {
	d.Presences.Unresponsive(c, cause)
}
func (d hostDevices) Responded(id fleet.DeviceID) { d.Presences.Responded(id) }

func (d hostDevices) SaveListing(ctx context.Context, l fleet.ToolListing) error {
	return d.ToolQuarantines.Listed(ctx, l, d.Devices.Listed)
}

// toolsReleased announces that models may see other tools of a program although it listed none.
func (s *Server) toolsReleased(id fleet.DeviceID) {
	s.Events.Publish(fleet.Event{Kind: fleet.EventInventory, At: time.Now().UTC(), Device: id})
	s.endpoints.ListChanged(id)
}

// definitionsReleased announces that models may see other tools of devices although these listed none.
func (s *Server) definitionsReleased([]string) {
	if s.gateway == nil { // during the start
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s.gateway.ToolsChanged(ctx)
}

// programs gives the gateway the prompts and resources of plug-ins and endpoints.
type programs struct{ *host.Host }

// OnChange implements [gateway.Programs].
func (p programs) OnChange(receive func(gateway.ProgramChange)) {
	p.Host.OnChange(func(c host.Change) {
		of := gateway.ProgramChange{Device: c.Device, Lists: c.Lists, Updated: c.Updated}
		if c.Log != nil {
			of.Log = &gateway.ProgramLog{Level: c.Log.Level, Logger: c.Log.Logger, Data: c.Log.Data}
		}
		receive(of)
	})
}

// links sends calls of plug-ins and endpoints to the host, and all others to the broker.
type links struct{ *Server }

func (l links) of(id fleet.DeviceID) fleet.Link {
	if id.IsProgram() {
		return l.host
	}
	return l.broker
}

// Queue implements [fleet.Link].
func (l links) Queue(id fleet.DeviceID, by fleet.PrincipalKind) (fleet.Turn, error) {
	return l.of(id).Queue(id, by)
}

// Introduced implements [fleet.Link].
func (l links) Introduced(id fleet.DeviceID) bool { return l.of(id).Introduced(id) }

// EncodeCall implements [call.Encoder].
func (l links) EncodeCall(id fleet.DeviceID, inv fleet.Invocation) (call.WireCall, error) {
	if !id.IsProgram() {
		return l.broker.EncodeCall(id, inv)
	}
	_, connected := l.host.Connection(id)
	w := call.WireCall{ID: 1, Connected: connected}
	var err error
	w.Request, err = mcp.EncodeCall(mcp.CallToolParams{ID: w.ID, Name: inv.Tool, Arguments: inv.Arguments})
	if err != nil {
		return w, fleet.Refuse(fleet.ErrInvalid, "invalid_call", "tool", inv.Tool, "detail", err.Error())
	}
	w.Message = w.Request
	return w, nil
}
