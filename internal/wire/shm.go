package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"io"
)

// If a launcher gives a memory file to the ranks of a host, it notes in the file which of their
// processes have ended, because a rank that dies before it has opened the file cannot show that
// itself. The notes are words of 4 bytes, by rank. A word is 0 until its rank's process has
// ended:
//
//	ShmEndedAt         ShmEndedAt + 4              ShmEndedAt + 4 × ShmEndedMax
//	┌──────────────────┬──────────────────┬─ … ─┬──┐
//	│ rank 0           │ rank 1           │     │  │
//	└──────────────────┴──────────────────┴─ … ─┴──┘
const (
	ShmEndedAt  = 4096
	ShmEndedMax = 4096 // ranks
)

// PutShmEnded notes in a memory file of any size that the process of a rank has ended. rank is
// the rank's number among those of the host. For a rank of ShmEndedMax or more, PutShmEnded does
// nothing.
func PutShmEnded(file io.WriterAt, rank int) error {
	if rank < 0 || rank >= ShmEndedMax {
		return nil
	}
	_, err := file.WriteAt([]byte{1, 0, 0, 0}, ShmEndedAt+4*int64(rank))
	return err
}

// ShmCardSize is the encoded size of a ShmCard with its proof.
const ShmCardSize = 8 + 4 + 4 + 4 + 4 + 32 + sha256.Size

// shmMagic opens a card; its last byte is the version.
const shmMagic = "weft-sh\x04"

// ShmCard describes a rank in the memory that it shares with the other ranks of its host, little
// endian, with a proof that the rank knows the job's secret:
//
//	 0        8      12     16    20    24      56      88
//	┌────────┬──────┬──────┬─────┬─────┬───────┬───────┐
//	│ magic  │ rank │ size │ pid │  0  │ nonce │  mac  │
//	└────────┴──────┴──────┴─────┴─────┴───────┴───────┘
type ShmCard struct {
	Rank, Size uint32   // rank in the job, and size of the job
	PID        uint32   // process id in the rank's own pid namespace
	Nonce      [32]byte // random number, different at each start of the process
}

// ShmJob holds the values of a job that the proof of a card depends on.
type ShmJob struct {
	Secret [32]byte
	JobID  string
}

// Put writes the card and its proof to b, which has ShmCardSize bytes.
func (c *ShmCard) Put(b []byte, j *ShmJob) {
	_ = b[ShmCardSize-1]
	copy(b, shmMagic)
	binary.LittleEndian.PutUint32(b[8:], c.Rank)
	binary.LittleEndian.PutUint32(b[12:], c.Size)
	binary.LittleEndian.PutUint32(b[16:], c.PID)
	binary.LittleEndian.PutUint32(b[20:], 0)
	copy(b[24:56], c.Nonce[:])
	copy(b[56:], j.mac("card", b[:56]))
}

// Parse reads a card. It returns false for bytes that Put has not written for the same job.
func (c *ShmCard) Parse(b []byte, j *ShmJob) bool {
	if len(b) != ShmCardSize || string(b[:8]) != shmMagic || binary.LittleEndian.Uint32(b[20:]) != 0 {
		return false
	}
	if !hmac.Equal(j.mac("card", b[:56]), b[56:]) {
		return false
	}
	c.Rank = binary.LittleEndian.Uint32(b[8:])
	c.Size = binary.LittleEndian.Uint32(b[12:])
	c.PID = binary.LittleEndian.Uint32(b[16:])
	copy(c.Nonce[:], b[24:56])
	return true
}

// mac returns the HMAC of a purpose, the job id and b under the job's secret.
func (j *ShmJob) mac(what string, b []byte) []byte {
	h := hmac.New(sha256.New, j.Secret[:])
	h.Write([]byte("weft shm " + what))
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(j.JobID)))
	h.Write(n[:])
	h.Write([]byte(j.JobID))
	h.Write(b)
	return h.Sum(nil)
}

// Label returns a number that only processes of the job can compute from what and b. If b holds a
// property of the host, processes find by equal numbers that they have the property in common.
func (j *ShmJob) Label(what string, b []byte) uint64 {
	return binary.LittleEndian.Uint64(j.mac(what, b))
}

// ShmWord is the first word of every message between two ranks of a host. The writer stores it
// last, so a reader that finds the sequence number that it waits for finds the complete message:
//
//	 63          32 31        8 7    0
//	┌──────────────┬───────────┬──────┐
//	│ sequence     │ length    │ kind │
//	└──────────────┴───────────┴──────┘
//
// Memory that no rank has written holds 0, which is not a message of any sequence number.
type ShmWord uint64

// ShmMaxLength is the largest length that a ShmWord can hold, in bytes.
const ShmMaxLength = 1<<24 - 1

// NewShmWord returns a word. length is at most ShmMaxLength, and kind is not 0.
func NewShmWord(seq uint32, length int, kind uint8) ShmWord {
	return ShmWord(seq)<<32 | ShmWord(length)<<8 | ShmWord(kind)
}

// Seq returns the sequence number.
func (w ShmWord) Seq() uint32 { return uint32(w >> 32) }

// Length returns the number of bytes after the word.
func (w ShmWord) Length() int { return int(w >> 8 & ShmMaxLength) }

// Kind returns the kind of the message.
func (w ShmWord) Kind() uint8 { return uint8(w) }
