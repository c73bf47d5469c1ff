package mcp

import (
	"bytes"
	"encoding/json"

	"fleetd/internal/jsonscan"
)

// maxMethod bounds the method of a notification.
const maxMethod = 128

// Receive handles one bare JSON-RPC message from the device, whatever it
// contains. It never blocks and retains nothing of msg. It treats text that does
// not parse as [Session.ReceiveBroken] does. It drops requests of the device:
// stock firmware makes none.
func (s *Session) Receive(msg []byte) {
	if len(msg) > s.o.MaxMessage {
		s.receiveOversize(msg)
		return
	}
	m, err := parseMessage(msg)
	switch {
	case err != nil:
		if !s.ReceiveBroken(msg) {
			s.o.Logger.Debug("message dropped", "err", err)
		}
	case m.method == nil:
		s.receiveAnswer(m)
	case m.id == nil && jsonscan.IsString(m.method):
		s.receiveNotification(m)
	default:
		s.o.Logger.Debug("request of the device dropped")
	}
}

// ReceiveBroken handles an uplink that is not valid JSON, with or without its
// envelope. Healthy stock firmware sends such texts, because it does not escape
// error messages. If ReceiveBroken finds an id, the request in flight fails: with
// an [*Error] if the device's message can be found too, otherwise with
// [ErrMalformed]. If no request waits for the id, the answer goes to OnUnmatched.
// ReceiveBroken returns false if it finds no id. It never blocks and retains
// nothing of raw.
func (s *Session) ReceiveBroken(raw []byte) bool {
	id, ok := salvageID(raw)
	if ok {
		s.settle(s.take(id), Answer{ID: id, Err: salvageError(raw)})
	}
	return ok
}

// receiveOversize finds the request that an oversize answer belongs to, and
// whether its tool failed. The transport bounds msg, too, so one more scan costs
// less than receiving msg did.
func (s *Session) receiveOversize(msg []byte) {
	limit := &LimitError{Limit: LimitBytes, Max: s.o.MaxMessage, Size: len(msg)}
	m, err := parseMessage(msg)
	id, ok := m.number()
	if err != nil || !ok {
		if id, ok = salvageID(msg); !ok {
			s.o.Logger.Warn("message dropped", "err", limit)
			return
		}
	}
	a := Answer{ID: id, Err: limit}
	if err == nil {
		if failure := m.failure(); failure != nil {
			a.Err = failure
		}
		limit.IsError = saysError(m.result)
	}
	s.settle(s.take(id), a)
}

// saysError reads only the isError flag of a result.
func saysError(result []byte) (is bool) {
	_ = jsonscan.Members(result, func(key, value []byte) error {
		is = is || string(key) == "isError" && string(value) == "true"
		return nil
	})
	return is
}

func (s *Session) receiveAnswer(m message) {
	id, ok := m.number()
	var w *waiter
	if ok {
		w = s.take(id)
	}
	if w == nil && s.o.OnUnmatched == nil {
		return // no receiver for the decoded answer
	}
	s.settle(w, m.answer(id, w != nil && w.raw))
}

// answer decodes m, or copies its result for a waiter that decodes it itself.
func (m message) answer(id int64, raw bool) Answer {
	a := Answer{ID: id, Err: m.failure()}
	switch {
	case a.Err != nil:
	case raw:
		a.raw = bytes.Clone(m.result) // the transport reuses msg after Receive
	default:
		a.Result, a.Err = parseResult(m.result)
	}
	return a
}

// settle delivers the answer to w, or to OnUnmatched if no call waits for it.
func (s *Session) settle(w *waiter, a Answer) {
	switch {
	case w != nil:
		w.done <- a
	case s.o.OnUnmatched != nil:
		s.o.OnUnmatched(a)
	}
}

func (s *Session) receiveNotification(m message) {
	if s.o.OnNotification == nil {
		return
	}
	var params json.RawMessage
	if m.params != nil {
		cleaned, ok := appendClean(make([]byte, 0, len(m.params)), m.params)
		if !ok {
			s.o.Logger.Debug("notification dropped: a number is out of range")
			return
		}
		params = cleaned
	}
	s.o.OnNotification(cleanLine(m.method, maxMethod), params)
}
