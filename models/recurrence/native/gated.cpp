// The steps of LSTM, GRU, GORU, coRNN and LEM and their adjoints, in float and double.
//
// A job owns some rows of one lane's batch and runs all time steps for them, so jobs never wait for
// one another. Forward, R^T comes packed panel by panel of hidden units, in each the panels of all
// gates one after the other: all gates of some units are known together. Backward, R comes in
// panels of its n columns.
// Rows are padded to whole vectors. The padding of S and A may hold anything, NaN included. The
// padding of G is zero: products over G run over whole rows, and 0 times NaN would reach the units.
// Never compile with -ffast-math: NaN and infinity must pass through.

#include "cornn.h"
#include "gated_kernels.h"
#include "gru.h"
#include "lem.h"
#include "lstm.h"

namespace {

template <class T> int step(const Call<T>& call) {
    const bool back = call.G != nullptr;
    switch (call.cell) {
        case LSTM: (back ? lstm_backward<T, LSTM> : lstm_forward<T, LSTM>)(call); return 0;
        case LSTM_DIAGONAL:
            (back ? lstm_backward<T, LSTM_DIAGONAL> : lstm_forward<T, LSTM_DIAGONAL>)(call);
            return 0;
        case LSTM_FULL:
            (back ? lstm_backward<T, LSTM_FULL> : lstm_forward<T, LSTM_FULL>)(call);
            return 0;
        case GRU: (back ? gru_backward<T, GRU> : gru_forward<T, GRU>)(call); return 0;
        case GRU_CHO: (back ? gru_backward<T, GRU_CHO> : gru_forward<T, GRU_CHO>)(call); return 0;
        case GORU: (back ? gru_backward<T, GORU> : gru_forward<T, GORU>)(call); return 0;
        case CORNN: (back ? cornn_backward<T> : cornn_forward<T>)(call); return 0;
        case LEM: (back ? lem_backward<T> : lem_forward<T>)(call); return 0;
        default: return 1;
    }
}

}  // namespace

extern "C" {
// Bytes of a vector: rows are padded to a multiple, matrices packed in panels of so many.
int vector_bytes() { return BYTES; }

// With G null, make the states in S[1:] from S[0] on, and A. Else make G from them, and the
// gradients of the first states in the carry, which comes with those of the last.
int step_float(const Call<float>* call) { return step(*call); }
int step_double(const Call<double>* call) { return step(*call); }
}
