package sim

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/hex"
	"net"
	"strconv"
	"time"
)

// The audio of a conversation (6): packets of a header of 16 bytes, which is the initial counter
// block of AES-128-CTR, and one encrypted Opus frame. A device's speech is a script; see
// [Options.Speech].

const (
	audioHeader   = 16
	boardFrame    = 60 * time.Millisecond
	softwareFrame = 20 * time.Millisecond
)

// An audioLine carries the frames of one conversation.
type audioLine interface {
	say(n int, at time.Duration, frame []byte) error
	close()
}

// An audioChannel is the UDP side of one conversation.
type audioChannel struct {
	conn  net.Conn
	block cipher.Block
	nonce [audioHeader]byte
	heard uint32 // highest sequence number received
}

// openAudio opens the channel that a valid hello names, if there is a script. Its goroutines end
// when the channel is closed.
func (d *Device) openAudio(udp value) audioLine {
	if d.fleet.options.Speech == nil {
		return nil
	}
	key, _ := hex.DecodeString(udp.field("key").text()) // onHello has checked both
	nonce, _ := hex.DecodeString(udp.field("nonce").text())
	if nonce[0] != 1 {
		return nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil
	}
	conn, err := net.Dial("udp", net.JoinHostPort(udp.field("server").text(),
		strconv.Itoa(int(udp.field("port").number()))))
	if err != nil {
		d.log().Debug("no audio channel", "err", err)
		return nil
	}
	a := &audioChannel{conn: conn, block: block, nonce: [audioHeader]byte(nonce)}
	go d.listenTo(a)
	go d.speak(a)
	return a
}

func (a *audioChannel) close() { a.conn.Close() }

// say sends the nth frame.
func (a *audioChannel) say(n int, at time.Duration, frame []byte) error {
	b := append(a.nonce[:], frame...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(frame)))
	binary.BigEndian.PutUint32(b[8:], uint32(at.Milliseconds()))
	binary.BigEndian.PutUint32(b[12:], uint32(n+1))
	cipher.NewCTR(a.block, b[:audioHeader]).XORKeyStream(b[audioHeader:], b[audioHeader:])
	_, err := a.conn.Write(b)
	return err
}

// speak sends the script a frame at a time, as the microphone delivers them.
func (d *Device) speak(a audioLine) {
	every, toc := boardFrame, byte(11<<3) // SILK, wide band, 60 ms, mono
	if d.board.software {
		every, toc = softwareFrame, 9<<3
	}
	beat := time.NewTicker(d.fleet.scaled(every))
	defer beat.Stop()
	for n := 0; ; n++ {
		sound := d.fleet.options.Speech(d.id.mac, n)
		if sound == nil {
			return
		}
		frame := append([]byte{toc}, sound...)
		if a.say(n, time.Duration(n)*every, frame) != nil {
			return
		}
		d.stats().audioSent.Add(1)
		<-beat.C
	}
}

// listenTo plays the received frames until the channel is closed.
func (d *Device) listenTo(a *audioChannel) {
	b := make([]byte, 1500)
	for {
		n, err := a.conn.Read(b)
		if err != nil {
			return
		}
		sequence := uint32(0)
		if n > audioHeader {
			sequence = binary.BigEndian.Uint32(b[12:])
		}
		if n <= audioHeader || b[0] != 1 || int(binary.BigEndian.Uint16(b[2:])) != n-audioHeader || sequence <= a.heard {
			d.stats().audioDropped.Add(1)
			continue
		}
		a.heard = sequence
		frame := b[audioHeader:n]
		cipher.NewCTR(a.block, b[:audioHeader]).XORKeyStream(frame, frame)
		d.stats().audioHeard.Add(1)
		if hear := d.fleet.options.Hear; hear != nil {
			hear(d.id.mac, frame[1:])
		}
	}
}
