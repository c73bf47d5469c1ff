package broker

import (
	"fleetd/broker/dialect"
	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/mcp"
)

var _ call.Encoder = (*Broker)(nil)

// EncodeCall encodes the call as Send does. It uses the id of the device's next call, or 1 for a
// device that has not connected since the start.
func (b *Broker) EncodeCall(id fleet.DeviceID, inv fleet.Invocation) (call.WireCall, error) {
	w := call.WireCall{ID: 1}
	speaks := dialect.XiaozhiMQTT(id) // the dialect of most devices
	if c := b.registry.connection(id); c != nil {
		w.Connected, w.NextID, w.ID = true, true, c.device.ids.Peek()
		speaks = c.dialect
	}
	params, err := speaks.Call(inv)
	if err == nil {
		params.ID = w.ID
		w.Request, err = mcp.EncodeCall(params)
	}
	if err != nil {
		return w, fleet.Refuse(fleet.ErrInvalid, "invalid_call", "tool", inv.Tool,
			"detail", err.Error())
	}
	w.Message = speaks.Wrap(nil, w.Request, params.Scope)
	return w, nil
}
