package device

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// maxActivation bounds the body of an activation. A stock device sends 250 bytes.
const maxActivation = 4 << 10

// activate serves a device that shows a code: it responds with 200 after the device is admitted,
// and with 202 while it waits. A device with a serial number in its fuses also sends the HMAC of
// its challenge. After any other status the device tries again ten seconds later (protocol 1.5).
func (h *Handler) activate(w http.ResponseWriter, r *http.Request) {
	id, err := fleet.ParseBoardID(r.Header.Get("Device-Id"))
	if err != nil {
		sendError(w, http.StatusBadRequest, "Device-Id header missing or invalid")
		return
	}
	if v := h.o.VoiceCodes; v != nil {
		// The code on the device's display belongs to a voice server: no proof is due, and the
		// device may show the code for some time.
		client := strings.TrimSpace(r.Header.Get("Client-Id"))
		if shown, showing := v.Shown(id); shown && h.o.Enrolments.Activate(id, client) {
			h.sendActivated(w, !showing)
			return
		}
	}
	proof, kind := readProof(r.Body)
	switch kind {
	case proofMalformed:
		sendError(w, http.StatusBadRequest,
			"the proof cannot be read; want algorithm hmac-sha256, serial_number, challenge and hmac with 64 hex digits")
		return
	case proofNone:
		h.sendActivated(w, h.o.Enrolments.Activate(id, strings.TrimSpace(r.Header.Get("Client-Id"))))
		return
	}
	proof.Device, proof.ClientID, proof.RemoteAddr = id, strings.TrimSpace(r.Header.Get("Client-Id")), remoteAddr(r)
	switch h.o.Enrolments.Prove(r.Context(), proof) {
	case enrolment.ProofAccepted:
		h.sendActivated(w, true)
	case enrolment.ProofMarked, enrolment.ProofUnknown, enrolment.ProofLater:
		h.sendActivated(w, false)
	case enrolment.ProofWrong:
		sendError(w, http.StatusUnauthorized, "the HMAC does not fit the serial number and the challenge")
	case enrolment.ProofChallenge:
		sendError(w, http.StatusUnauthorized,
			"the challenge is not this device's, was used or has expired; poll again for a new one")
	case enrolment.ProofConflict:
		sendError(w, http.StatusConflict, "another device has proved this serial number; an administrator must decide")
	case enrolment.ProofLimited:
		sendError(w, http.StatusTooManyRequests, "too many wrong proofs; wait")
	}
}

func (h *Handler) sendActivated(w http.ResponseWriter, activated bool) {
	if activated {
		send(w, http.StatusOK, "application/json", []byte(`{"message":"activated"}`))
		return
	}
	send(w, http.StatusAccepted, "application/json", []byte(`{"message":"waiting"}`))
}

type proofKind int

const (
	proofNone proofKind = iota // devices without a serial number send none
	proofMalformed
	proofGiven
)

// readProof reads the body of an activation. A body without an HMAC carries no proof, whatever else
// it contains.
func readProof(body io.Reader) (enrolment.SerialProof, proofKind) {
	raw, err := io.ReadAll(io.LimitReader(body, maxActivation+1))
	if err != nil || len(raw) > maxActivation {
		return enrolment.SerialProof{}, proofMalformed
	}
	var b struct {
		Algorithm string          `json:"algorithm"`
		Serial    string          `json:"serial_number"`
		Challenge string          `json:"challenge"`
		HMAC      json.RawMessage `json:"hmac"`
	}
	err = json.Unmarshal(raw, &b)
	if b.HMAC == nil {
		return enrolment.SerialProof{}, proofNone
	}
	var digits string
	if err != nil || json.Unmarshal(b.HMAC, &digits) != nil || len(digits) != 64 || b.Algorithm != "hmac-sha256" ||
		b.Serial == "" || b.Challenge == "" {
		return enrolment.SerialProof{}, proofMalformed
	}
	mac, err := hex.DecodeString(digits)
	if err != nil {
		return enrolment.SerialProof{}, proofMalformed
	}
	return enrolment.SerialProof{Serial: b.Serial, Challenge: b.Challenge, MAC: mac}, proofGiven
}

// VoiceCodes reports which devices show a code of their voice server.
type VoiceCodes interface {
	// Shown reports whether a device has received such a code since it started, and whether it
	// should still show the code.
	Shown(id fleet.DeviceID) (shown, showing bool)
}
