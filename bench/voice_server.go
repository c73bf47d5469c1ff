package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/gorilla/websocket"
)

// The voice server runs in another process. It accepts every hello and echoes each
// frame of audio. It is also the plain UDP echo with which fleetd is compared.

type voiceServerCommand struct{}

// A voiceServer is the child with its addresses.
type voiceServer struct {
	*child
	URL  string // of the voice server
	Echo string // address of the UDP echo
}

func startVoiceServer() (*voiceServer, error) {
	c, err := startChild("voice-server")
	if err != nil {
		return nil, err
	}
	s := &voiceServer{child: c}
	if err := json.NewDecoder(c.stdout).Decode(s); err != nil {
		c.stop()
		return nil, fmt.Errorf("the voice server did not start: %w", err)
	}
	return s, nil
}

// Run serves until stdin ends.
func (voiceServerCommand) Run() error {
	echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	_ = echo.SetReadBuffer(8 << 20)
	go echoUDP(echo)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, http.HandlerFunc(echoConversation)) }()
	err = json.NewEncoder(os.Stdout).Encode(voiceServer{Echo: echo.LocalAddr().String(),
		URL: "ws://" + listener.Addr().String() + "/xiaozhi/v1/?from=mqtt_gateway"})
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

func echoUDP(conn *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
	}
}

var voiceUpgrader = websocket.Upgrader{ReadBufferSize: 1024, WriteBufferSize: 1024}

// echoConversation answers the hello, and each binary message with itself.
func echoConversation(w http.ResponseWriter, r *http.Request) {
	ws, err := voiceUpgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	buf := make([]byte, 2048)
	for {
		kind, reader, err := ws.NextReader()
		if err != nil {
			return
		}
		n, err := io.ReadFull(reader, buf)
		if err == nil {
			return // longer than any frame
		}
		message := buf[:n]
		if kind == websocket.TextMessage {
			message = []byte(`{"type":"hello","version":1,"transport":"websocket","session_id":"bench",` +
				`"audio_params":{"format":"opus","sample_rate":24000,"channels":1,"frame_duration":60}}`)
			var m struct{ Type string }
			if json.Unmarshal(buf[:n], &m) != nil || m.Type != "hello" {
				continue
			}
		}
		if err := ws.WriteMessage(kind, message); err != nil {
			return
		}
	}
}
