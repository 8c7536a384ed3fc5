from burnish.loops.program import *
from burnish.loops.expr import *
from burnish.loops import tensor as t
def test_smoke(native):
    import numpy as np
    x=t.placeholder((7,5),name="x"); y=t.compute((7,5),lambda i,j:x[i,j]+1.0,"y")
    a=np.random.rand(7,5).astype("float32")
    out=native(t.create_program("p",[x],[y]),{"x":a})
    np.testing.assert_array_equal(out["y"],a+1)
def test_bad(native):
    import numpy as np
    X=Buffer("x",(8,)); Y=Buffer("y",(8,))
    native(Program("p",(X,Y),For("i",8,"serial",Store(Y,(Var("i"),),Load(X,(Var("i")+1,))))),{"x":np.ones(8,"float32")})
